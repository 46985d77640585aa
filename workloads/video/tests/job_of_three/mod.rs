//! A job of a source, a worker and a sink.

use clap::Parser;
use samite_testkit::{Units, Who, programs};
use samite_video::job::{Error, sink, source, worker};
use std::io::Write;
use std::time::{Duration, Instant};

pub(crate) const SOURCE: Who = Who::Unit(0);
pub(crate) const WORKER: Who = Who::Unit(1);
pub(crate) const SINK: Who = Who::Unit(2);

/// Runs the program of this unit. `options`: those of the source and of the sink.
pub(crate) fn program(
    fabric: &samite::Fabric,
    [via, worker_options]: [&str; 2],
    options: &[&str],
    out: &mut dyn Write,
) -> Result<(), Error> {
    let program = fabric.identity().program.clone();
    let line = [&program, "--via", via];
    let line = |more: &[&str]| -> Vec<String> {
        let words = line.iter().chain(more);
        words
            .flat_map(|word| word.split_whitespace())
            .map(str::to_owned)
            .collect()
    };
    match &*program {
        "source" => {
            let args = source::Args::try_parse_from(line(&options[..1]));
            source::run(fabric, &args.expect("options of the source"), out)
        }
        "worker" => {
            let args = worker::Args::try_parse_from(line(&[worker_options]));
            worker::run(fabric, &args.expect("options of the worker"), out)
        }
        _ => {
            let args = sink::Args::try_parse_from(line(&options[1..]));
            sink::run(fabric, &args.expect("options of the sink"), out)
        }
    }
}

pub(crate) fn job() -> Units {
    let job = programs(&[("source", 1), ("worker", 1), ("sink", 1)]);
    job.services(samite::services())
}

/// Waits until it is so, but not for ever.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < end, "not so: {what}");
        std::thread::yield_now();
    }
}
