//! Workflow files of any content: an error that names its place, or a workflow; never a panic.
//!
//! `SAMITE_FUZZ_SEED=N` repeats a seed; `SAMITE_FUZZ_MINUTES=N` runs others for so long.

use samite_launch::{Builtins, Workflow};
use samite_testkit::fuzz::{self, Rng, mutate};
use std::path::Path;

const FILES: [&str; 4] = [
    include_str!("../../../../workflows/synthetic.toml"),
    include_str!("../../../../workflows/steering.toml"),
    include_str!("../../../../workflows/laplace.toml"),
    include_str!("../../../../workflows/sort.toml"),
];

/// Words that mean something in these files.
const WORDS: [&str; 16] = [
    "[[program]]",
    "[job]",
    "[parameters]",
    "[[edge]]",
    "units",
    "\"{units}\"",
    "{",
    "}",
    "9223372036854775807",
    "-1",
    "1e999",
    "''",
    "[",
    "=",
    "\"{a*{b}}\"",
    "\u{e4}",
];

fn text(random: &mut Rng) -> String {
    let file = random.choice(FILES).unwrap_or_default();
    let mut bytes = file.as_bytes().to_vec();
    for _ in 0..random.u32(1..4) {
        if random.bool() {
            let word = random.choice(WORDS).unwrap_or_default();
            let at = random.usize(..=bytes.len());
            let end = random.usize(at..=bytes.len()).min(at + 8);
            bytes.splice(at..end, word.bytes());
        } else {
            mutate(random, &mut bytes);
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn no_text_breaks_a_workflow() {
    let builtins = Builtins {
        executable: "/bin/true".into(),
        names: &["synthetic-writer", "synthetic-reader", "laplace"],
    };
    fuzz::rounds("decoders::no_text_breaks_a_workflow", 3000, |_, random| {
        let path = Path::new("/nonexistent/fuzz.toml");
        let Ok(mut workflow) = Workflow::parse(path, text(random)) else {
            return;
        };
        let _ = workflow.job();
        let parameters = workflow.parameters();
        for parameter in &parameters {
            let value = text(random);
            let _ = workflow.set(&format!(
                "{}={}",
                parameter.name,
                &value[..value.floor_char_boundary(9)]
            ));
        }
        let _ = workflow.set(&text(random));
        let _ = workflow.programs(&builtins);
        let _ = workflow.edges::<toml::Table>();
    });
}
