//! The job in real processes: its output is that of a sequential run, however frames move.

use clap::Parser;
use samite_testkit::{Cluster, Outcome, Units, Who, check, pause, programs, same};
use samite_video::job::figures::Figures;
use samite_video::job::{sink, source, worker};

/// Larger than a message that is sent without waiting for its receiver.
const CLIP: [&str; 4] = ["--size", "333x77", "--frames", "300"];

/// Runs the program of this unit: `via`, with the options of workers and sink. Returns the figures,
/// at the sink.
fn program(
    fabric: &samite::Fabric,
    via: &str,
    worker_options: &[&str],
    sink_options: &[&str],
) -> Result<Option<Figures>, samite_testkit::Failed> {
    let program = fabric.identity().program.clone();
    let line = [&program, "--via", via];
    let line = |more: &[&str]| -> Vec<String> {
        line.iter()
            .chain(more)
            .map(|word| (*word).to_owned())
            .collect()
    };
    let mut out = Vec::new();
    match &*program {
        "source" => source::run(
            fabric,
            &source::Args::try_parse_from(line(&CLIP))?,
            &mut out,
        )?,
        "worker" => {
            let args = worker::Args::try_parse_from(line(worker_options))?;
            worker::run(fabric, &args, &mut out)?;
        }
        _ => {
            let folder = tempfile::tempdir()?;
            let path = folder.path().join("figures.json");
            let figures = ["--figures", path.to_str().unwrap_or_default()];
            let options = [&CLIP[..], &["--check"], &figures, sink_options].concat();
            let args = sink::Args::try_parse_from(line(&options))?;
            sink::run(fabric, &args, &mut out)?;
            let said = String::from_utf8(out)?;
            check!(said.contains("SUCCESSFUL"), "{said}");
            check!(said.contains("300 of 333 x 77"), "{said}");
            let figures = Figures::read(&path)?;
            same!(figures.verified, Some(true));
            same!(
                figures.nodes.iter().map(|node| node.frames).sum::<u64>(),
                300
            );
            return Ok(Some(figures));
        }
    }
    Ok(None)
}

fn job() -> Units {
    let job = programs(&[("source", 1), ("worker", 3), ("sink", 1)]);
    job.services(samite::services())
}

/// Runs the job. `messages`: the least and the most messages per frame.
fn run(via: &'static str, messages: [f64; 2], name: &str) {
    let body = move |fabric: &samite::Fabric, _: &[_]| -> Outcome {
        if let Some(figures) = program(fabric, via, &[], &[])? {
            same!(&*figures.via, via);
            let [least, most] = messages;
            let found = figures.messages_per_frame;
            check!(
                (least..=most).contains(&found),
                "{found} messages per frame"
            );
        }
        Ok(())
    };
    job().run(name, body);
}

/// The first worker dies, and the source does not know when it gives it frames.
fn run_without_one(via: &'static str, name: &str) {
    let body = move |fabric: &samite::Fabric, _: &[_]| -> Outcome {
        if fabric.identity().unit <= 1 {
            pause("here");
        }
        if let Some(figures) = program(fabric, via, &[], &[])? {
            let lost: Vec<bool> = figures.nodes.iter().map(|node| node.is_lost).collect();
            same!(lost, [true, false, false]);
        }
        Ok(())
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
    run("dsm", [6.0, 9.5], "by_chunks");
}

#[test]
fn by_chunks_with_few_requests() {
    run("dsm-fused", [9.0, 14.0], "by_chunks_with_few_requests");
}

#[test]
fn by_chunks_with_guards() {
    run("dsm-strict", [13.0, 18.0], "by_chunks_with_guards");
}

#[test]
fn by_messages_without_a_buffer() {
    run("mp-sync", [2.0; 2], "by_messages_without_a_buffer");
}

#[test]
fn by_messages_with_one_buffer() {
    run("mp-async", [2.0; 2], "by_messages_with_one_buffer");
}

#[test]
fn by_messages_with_a_buffer_for_each() {
    let name = "by_messages_with_a_buffer_for_each";
    run("mp-async-each", [2.0; 2], name);
}

#[test]
fn by_requests_and_replies() {
    run("req-rep", [4.0; 2], "by_requests_and_replies");
}

#[test]
fn by_pushing_and_pulling() {
    run("push-pull", [2.0; 2], "by_pushing_and_pulling");
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

/// All kernels, each by both loops.
fn kernel(kernel: &'static str, how: &'static str, name: &str) {
    let body = move |fabric: &samite::Fabric, _: &[_]| -> Outcome {
        let options = ["--kernel", kernel];
        program(
            fabric,
            "dsm",
            &[&options[..], &["--how", how]].concat(),
            &options,
        )?;
        Ok(())
    };
    job().run(name, body);
}

#[test]
fn laplacian() {
    kernel("laplacian", "vector", "laplacian");
}

#[test]
fn copy() {
    kernel("copy", "vector", "copy");
}

#[test]
fn sobel_by_pixel() {
    kernel("sobel", "scalar", "sobel_by_pixel");
}

/// Each worker plays a board, and a board that is twice as fast does about twice as many frames.
#[test]
fn boards_share_the_frames_by_their_speeds() {
    let body = move |fabric: &samite::Fabric, _: &[_]| -> Outcome {
        let rank = fabric.identity().rank;
        let board = ["i7", "xu4", "rpi"][rank as usize];
        if let Some(figures) = program(fabric, "dsm", &["--node", board], &[])? {
            same!(&*figures.pace, "sleep");
            let names: Vec<&str> = figures.nodes.iter().map(|node| &*node.name).collect();
            same!(names, ["i7", "XU4", "RPI 3B+"]);
            // 8.3 : 1.5 : 1. A busy machine delays all of them.
            let frames: Vec<u64> = figures.nodes.iter().map(|node| node.frames).collect();
            check!(frames[0] > frames[1] && frames[1] > frames[2], "{frames:?}");
            check!(
                figures.binds == "compute" && figures.efficiency <= 1.01,
                "{figures:?}"
            );
        }
        Ok(())
    };
    job().run("boards_share_the_frames_by_their_speeds", body);
}
