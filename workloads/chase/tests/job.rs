//! The program in real processes, mapped and by messages.

use clap::Parser;
use samite_chase::job::{Args, run};
use samite_testkit::{Outcome, check, units};

fn chases(mask: samite::Mask, name: &str) {
    units(4).mask(mask).run(name, |fabric, _| -> Outcome {
        let folder = tempfile::tempdir()?;
        let page = folder.path().join("chase.html");
        // Only the client makes a cycle, with its own seed.
        let seed = fabric.identity().unit.to_string();
        let words = [
            "chase",
            "--words",
            "1000",
            "--depth",
            "64",
            "--repeats",
            // The choice tries each of three ways four times, and then takes one.
            "13",
            "--seed",
            &seed,
            "--report",
        ];
        let args = Args::parse_from(
            words
                .iter()
                .map(|word| (*word).into())
                .chain([page.clone().into_os_string()]),
        );
        let mut out = Vec::new();
        run(fabric, &args, &mut out)?;
        if fabric.identity().unit == 0 {
            let text = String::from_utf8_lossy(&out);
            check!(
                text.contains("SUCCESSFUL") && text.contains("gets / moved"),
                "{text}"
            );
            let html = std::fs::read_to_string(page)?;
            check!(
                html.contains("Pointer chase") && html.contains("<svg"),
                "no page"
            );
        }
        Ok(())
    });
}

#[test]
fn mapped() {
    chases(samite_testkit::ONE_NODE, "mapped");
}

#[test]
fn by_messages() {
    chases(samite_testkit::MESSAGES_ONLY, "by_messages");
}
