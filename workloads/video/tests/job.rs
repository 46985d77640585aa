//! The job in real processes: its output is that of a sequential run, however frames move.

use clap::Parser;
use samite_testkit::{Cluster, Outcome, Units, Who, check, pause, programs, same};
use samite_video::job::{sink, source, worker};

const CLIP: [&str; 4] = ["--size", "333x77", "--frames", "500"];

/// Runs the program of this unit. `most`: the most messages per frame, if they are counted.
fn program(fabric: &samite::Fabric, via: &str, most: Option<f64>) -> Outcome {
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
            check!(said.contains("500 of 333 x 77"), "{said}");
            let mut lines = said.lines().map(|line| line.split_whitespace());
            let messages = lines.find_map(|mut words| match words.next() {
                Some("messages") => words.next(),
                _ => None,
            });
            let messages = messages.map(str::parse::<f64>).transpose()?;
            same!(messages.is_some(), most.is_some());
            check!(messages <= most, "{said}");
        }
    }
    Ok(())
}

fn job() -> Units {
    let job = programs(&[("source", 1), ("worker", 3), ("sink", 1)]);
    job.services(samite::services())
}

fn run(via: &'static str, most: Option<f64>, name: &str) {
    let body = move |fabric: &samite::Fabric, _: &[_]| program(fabric, via, most);
    job().run(name, body);
}

/// The first worker dies, and the source does not know when it gives it frames.
fn run_without_one(via: &'static str, name: &str) {
    let body = move |fabric: &samite::Fabric, _: &[_]| -> Outcome {
        if fabric.identity().unit <= 1 {
            pause("here");
        }
        program(fabric, via, Some(20.0))
    };
    job().orchestrate(name, body, |cluster: &mut Cluster| {
        let (source, worker) = (Who::Unit(0), Who::Unit(1));
        cluster.wait_point(source, "here");
        cluster.wait_point(worker, "here");
        cluster.kill(worker);
        cluster.release(source);
        cluster.all_end();
    });
}

#[test]
fn by_chunks() {
    run("dsm", Some(9.5), "by_chunks");
}

#[test]
fn by_chunks_with_few_requests() {
    run("dsm-fused", Some(14.0), "by_chunks_with_few_requests");
}

#[test]
fn by_chunks_with_guards() {
    run("dsm-strict", Some(18.0), "by_chunks_with_guards");
}

#[test]
fn by_messages() {
    run("messages", None, "by_messages");
}

#[test]
fn another_worker_does_what_a_lost_one_had() {
    run_without_one("dsm", "another_worker_does_what_a_lost_one_had");
}

#[test]
fn another_worker_does_what_a_lost_one_had_with_guards() {
    let name = "another_worker_does_what_a_lost_one_had_with_guards";
    run_without_one("dsm-strict", name);
}
