//! The job in real processes: its output is that of a sequential run, however frames move.

mod at_frame;

use at_frame::{BEGINS, ENDS, GIVEN};
use clap::Parser;
use samite_testkit::{Cluster, Outcome, Units, Who, check, pause, programs, same};
use samite_video::job::figures::Figures;
use samite_video::job::{sink, source, worker};

/// Larger than a message that is sent without waiting for its receiver.
const SIZE: &str = "333x77";
const FRAMES: u64 = 300;
/// Workers that need some milliseconds for a frame, so that each gets some.
const SLOW: &[&str] = &["--node", "rpi"];
/// As many as the clip of the S-DSM paper has.
const ALL_FRAMES: u64 = samite_video::job::nodes::FRAMES;

/// Runs the program of this unit: `via`, with the options of workers and sink. Returns the figures,
/// at the sink.
fn program(
    fabric: &samite::Fabric,
    (via, frames): (&str, u64),
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
    let count = frames.to_string();
    let clip = ["--size", SIZE, "--frames", &count];
    let mut out = Vec::new();
    match &*program {
        "source" => source::run(
            fabric,
            &source::Args::try_parse_from(line(&clip))?,
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
            let options = [&clip[..], &["--check"], &figures, sink_options].concat();
            let args = sink::Args::try_parse_from(line(&options))?;
            sink::run(fabric, &args, &mut out)?;
            let said = String::from_utf8(out)?;
            check!(said.contains("SUCCESSFUL"), "{said}");
            check!(said.contains(&format!("{frames} of 333 x 77")), "{said}");
            let figures = Figures::read(&path)?;
            same!(figures.verified, Some(true));
            same!(
                figures.nodes.iter().map(|node| node.frames).sum::<u64>(),
                frames
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

/// Runs the job. `messages`: the least and the most messages per frame. Of fewer frames, the
/// beginning is a larger part: each time that a result has to wait long for the one before it, its
/// writer asks the server for one more buffer, until there are enough.
fn run(via: &'static str, messages: [f64; 2], name: &str) {
    let body = move |fabric: &samite::Fabric, _: &[_]| -> Outcome {
        if let Some(figures) = program(fabric, (via, ALL_FRAMES), SLOW, &[])? {
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

/// The first worker dies at the last of these points, when it has done `done` frames. If that is
/// after it has given a result, the source has not heard of it. The source does not know when it
/// gives it the next frame.
fn run_without_one(
    via: &'static str,
    points: &'static [(&'static str, u64)],
    done: u64,
    name: &str,
) {
    let body = move |fabric: &samite::Fabric, _: &[_]| -> Outcome {
        if fabric.identity().unit == 1 {
            at_frame::pause_at(points);
        }
        if let Some(figures) = program(fabric, (via, FRAMES), SLOW, &[])? {
            let lost: Vec<bool> = figures.nodes.iter().map(|node| node.is_lost).collect();
            same!(lost, [true, false, false]);
            same!(figures.nodes[0].frames, done);
        }
        Ok(())
    };
    job().orchestrate(name, body, |cluster: &mut Cluster| {
        let (source, worker) = (Who::Unit(0), Who::Unit(1));
        cluster.wait_point(worker, points[0].0);
        if points.len() > 1 {
            cluster.stop(source);
            cluster.release(worker);
            cluster.wait_point(worker, points[1].0);
        }
        cluster.kill(worker);
        if points.len() > 1 {
            cluster.go_on(source);
        }
        cluster.all_end();
    });
}

#[test]
fn by_chunks() {
    // On a busy machine 8, and a few in all for further buffers.
    run("dsm", [6.0, 8.1], "by_chunks");
}

#[test]
fn by_chunks_with_few_requests() {
    run("dsm-fused", [4.0, 12.0], "by_chunks_with_few_requests");
}

#[test]
fn by_chunks_with_guards() {
    run("dsm-strict", [5.0, 18.0], "by_chunks_with_guards");
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
    let name = "another_worker_does_what_a_lost_one_had";
    run_without_one("dsm", &[(BEGINS, 0)], 0, name);
}

#[test]
fn another_worker_does_what_a_lost_one_had_with_few_requests() {
    let name = "another_worker_does_what_a_lost_one_had_with_few_requests";
    run_without_one("dsm-fused", &[(BEGINS, 3)], 3, name);
}

#[test]
fn another_worker_does_what_a_lost_one_had_with_guards() {
    let name = "another_worker_does_what_a_lost_one_had_with_guards";
    run_without_one("dsm-strict", &[(BEGINS, 3)], 3, name);
}

#[test]
fn a_result_that_was_not_given_is_made_again() {
    let name = "a_result_that_was_not_given_is_made_again";
    run_without_one("dsm", &[(ENDS, 2)], 2, name);
}

#[test]
fn a_result_that_was_not_given_is_made_again_with_guards() {
    let name = "a_result_that_was_not_given_is_made_again_with_guards";
    run_without_one("dsm-strict", &[(ENDS, 2)], 2, name);
}

#[test]
fn a_result_that_was_given_counts_once() {
    let name = "a_result_that_was_given_counts_once";
    run_without_one("dsm", &[(BEGINS, 2), (GIVEN, 2)], 3, name);
}

#[test]
fn a_result_that_was_given_counts_once_with_guards() {
    let name = "a_result_that_was_given_counts_once_with_guards";
    run_without_one("dsm-strict", &[(BEGINS, 2), (GIVEN, 2)], 3, name);
}

/// A worker that does nothing for longer than the deadline is taken for lost. The others, which
/// have no more frames meanwhile, wait.
#[test]
fn a_worker_that_is_stopped_is_taken_for_lost() {
    let body = |fabric: &samite::Fabric, _: &[_]| -> Outcome {
        if fabric.identity().unit == 1 {
            at_frame::pause_at(&[(BEGINS, 1)]);
        }
        if let Some(figures) = program(fabric, ("dsm", FRAMES), SLOW, &[])? {
            same!(figures.nodes[0].frames, 1);
            check!(figures.nodes[0].is_lost, "{figures:?}");
        }
        Ok(())
    };
    let short = job().config(|config| config.deadline = std::time::Duration::from_secs(4));
    let name = "a_worker_that_is_stopped_is_taken_for_lost";
    short.orchestrate(name, body, |cluster: &mut Cluster| {
        let (worker, sink) = (Who::Unit(1), Who::Unit(4));
        cluster.wait_point(worker, BEGINS);
        cluster.stop(worker);
        cluster.wait_gone(sink);
        cluster.kill(worker);
        cluster.all_end();
    });
}

/// A worker that never begins is taken for lost, and the sink waits as long as the source does.
#[test]
fn a_worker_that_does_not_begin_is_left_out() {
    let body = |fabric: &samite::Fabric, _: &[_]| -> Outcome {
        if fabric.identity().unit == 1 {
            pause("here");
        }
        if let Some(figures) = program(fabric, ("dsm", FRAMES), SLOW, &[])? {
            same!(figures.nodes[0].frames, 0);
            check!(figures.nodes[0].is_lost, "{figures:?}");
        }
        Ok(())
    };
    let short = job().config(|config| config.deadline = std::time::Duration::from_secs(4));
    let name = "a_worker_that_does_not_begin_is_left_out";
    short.orchestrate(name, body, |cluster: &mut Cluster| {
        let (worker, sink) = (Who::Unit(1), Who::Unit(4));
        cluster.wait_point(worker, "here");
        cluster.wait_gone(sink);
        cluster.kill(worker);
        cluster.all_end();
    });
}

/// All kernels, each by both loops.
fn kernel(kernel: &'static str, how: &'static str, name: &str) {
    let body = move |fabric: &samite::Fabric, _: &[_]| -> Outcome {
        let options = ["--kernel", kernel];
        program(
            fabric,
            ("dsm", FRAMES),
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

/// Each worker plays a board, and takes as long as that for each frame. How they share the frames
/// depends on how busy the machine is; `schedule` has the tests of that.
#[test]
fn boards_take_their_times() {
    let body = move |fabric: &samite::Fabric, _: &[_]| -> Outcome {
        let rank = fabric.identity().rank;
        let board = ["i7", "xu4", "rpi"][rank as usize];
        if let Some(figures) = program(fabric, ("dsm", FRAMES), &["--node", board], &[])? {
            same!(&*figures.pace, "sleep");
            let names: Vec<&str> = figures.nodes.iter().map(|node| &*node.name).collect();
            same!(names, ["i7", "XU4", "RPI 3B+"]);
            let needs = figures.nodes.iter().filter_map(|node| node.needs_s);
            let needs: Vec<f64> = needs.collect();
            same!(needs.len(), 3);
            // 8.3 : 1.5 : 1.
            check!(needs[0] < needs[1] && needs[1] < needs[2], "{needs:?}");
            for (node, needs) in figures.nodes.iter().zip(needs) {
                let least = node.frames as f64 * needs;
                check!(node.processing_s >= least * 0.999, "{node:?}");
            }
        }
        Ok(())
    };
    job().run("boards_take_their_times", body);
}
