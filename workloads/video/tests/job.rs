//! The job in real processes: its output is that of a sequential run, however frames move.

use clap::Parser;
use samite_testkit::{Outcome, check, programs};
use samite_video::job::{sink, source, worker};

const CLIP: [&str; 4] = ["--size", "333x77", "--frames", "60"];

/// Runs the program of this unit.
fn run(via: &'static str, name: &str) {
    let body = move |fabric: &samite::Fabric, _: &[_]| -> Outcome {
        let program = fabric.identity().program.clone();
        let line = [&program, "--via", via];
        let line = || line.iter().copied();
        let mut out = Vec::new();
        match &*program {
            "source" => source::run(
                fabric,
                &source::Args::try_parse_from(line().chain(CLIP))?,
                &mut out,
            )?,
            "worker" => worker::run(fabric, &worker::Args::try_parse_from(line())?, &mut out)?,
            _ => {
                let line = line().chain(CLIP).chain(["--check"]);
                sink::run(fabric, &sink::Args::try_parse_from(line)?, &mut out)?;
                let said = String::from_utf8(out)?;
                check!(said.contains("SUCCESSFUL"), "{said}");
                check!(said.contains("60 of 333 x 77"), "{said}");
            }
        }
        Ok(())
    };
    let job = programs(&[("source", 1), ("worker", 3), ("sink", 1)]);
    job.services(samite::services()).run(name, body);
}

#[test]
fn by_chunks() {
    run("dsm", "by_chunks");
}

#[test]
fn by_messages() {
    run("messages", "by_messages");
}
