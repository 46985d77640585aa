//! How the job ends when something fails, and what is left then.

mod at_frame;
mod job_of_three;

use at_frame::{BEGINS, ENDS};
use job_of_three::{SINK, SOURCE, WORKER, job, program, until};
use samite_testkit::{Cluster, Failed, Outcome, Who, check, pause};
use samite_video::Error as VideoError;
use samite_video::job::Error;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// Returns the scratch folder of the test, in a process of the job. The test gives it by
/// [`give_folder`].
fn folder() -> PathBuf {
    pause("folder").into()
}

/// Gives a process of the job the scratch folder.
fn give_folder(cluster: &mut Cluster, who: Who, folder: &TempDir) {
    cluster.wait_point(who, "folder");
    let path = folder.path().to_str().expect("a path in UTF-8");
    cluster.release_as(who, path);
}

/// Where an output is until it is complete.
fn partial_of(output: &Path) -> PathBuf {
    let name = output.file_name().unwrap_or_default();
    output.with_file_name(format!(".partial-{}", name.display()))
}

/// The disk is full: the sink says so, and all others end.
fn full_disk(via: &'static str, name: &'static str) {
    let body = move |fabric: &samite::Fabric, _: &[_]| -> Outcome {
        let mut output = String::new();
        if &*fabric.identity().program == "sink" {
            // A link with the ending of a format, to a device that is always full.
            let full = folder().join("full.y4m");
            std::os::unix::fs::symlink("/dev/full", &full)?;
            output = format!("--output {}", full.display());
        }
        let options = ["--size 640x480 --frames 200", &output];
        let ended = program(fabric, [via, "--kernel copy"], &options, &mut Vec::new());
        if &*fabric.identity().program == "sink" {
            let Err(Error::Video(VideoError::Written { path, source })) = ended else {
                return Err(Failed::new(format_args!("{ended:?}")));
            };
            check!(path.ends_with("full.y4m"), "{path:?}");
            let error = source.to_string();
            check!(
                error.contains("could not be written; free some space"),
                "{error}"
            );
        }
        Ok(())
    };
    job().orchestrate(name, body, |cluster: &mut Cluster| {
        let folder = tempfile::tempdir().expect("a scratch folder");
        give_folder(cluster, SINK, &folder);
        cluster.all_end();
    });
}

#[test]
fn a_full_disk_ends_the_job() {
    full_disk("dsm", "a_full_disk_ends_the_job");
}

#[test]
fn a_full_disk_ends_the_job_by_messages() {
    full_disk("push-pull", "a_full_disk_ends_the_job_by_messages");
}

/// A sink that is told to end leaves no file, whether it or ffmpeg writes it.
fn told_to_end(ending: &'static str, name: &'static str) {
    let name_of = move || format!("out.{ending}");
    let body = move |fabric: &samite::Fabric, _: &[_]| -> Outcome {
        let mut output = String::new();
        match &*fabric.identity().program {
            "worker" => _ = pause("here"), // No frame will come.
            "sink" => output = format!("--output {}", folder().join(name_of()).display()),
            _ => {}
        }
        let options = ["--size 640x480 --frames 200", &output];
        Ok(program(fabric, ["mp-sync", ""], &options, &mut Vec::new())?)
    };
    job().orchestrate(name, body, |cluster: &mut Cluster| {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let output = folder.path().join(name_of());
        let partial = partial_of(&output);
        give_folder(cluster, SINK, &folder);
        cluster.wait_point(WORKER, "here");
        until("there is an output", || partial.exists());
        cluster.let_die(SINK);
        let pid = rustix::process::Pid::from_raw(cluster.pid(SINK)).expect("a process id");
        let told = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        told.expect("the sink can be told");
        cluster.wait_gone(SINK);
        assert!(
            !partial.exists() && !output.exists(),
            "{}",
            partial.display()
        );
        cluster.kill(SOURCE);
        cluster.kill(WORKER);
        cluster.all_end();
        assert!(!partial.exists());
    });
}

#[test]
fn a_sink_that_is_told_to_end_leaves_no_file() {
    told_to_end("y4m", "a_sink_that_is_told_to_end_leaves_no_file");
}

#[test]
fn an_encoder_is_ended_with_its_sink() {
    let name = "an_encoder_is_ended_with_its_sink";
    let found = std::process::Command::new("ffmpeg")
        .arg("-version")
        .output();
    let is_there = found.is_ok_and(|output| output.status.success());
    if samite_testkit::require(name, is_there, "install the Debian package ffmpeg") {
        told_to_end("mkv", name);
    }
}

/// A worker that is lost ends a job by messages, for its frames were in its memory alone.
fn lost_worker(via: &'static str, point: &'static [(&'static str, u64)], name: &str) {
    let body = move |fabric: &samite::Fabric, _: &[_]| -> Outcome {
        if &*fabric.identity().program == "worker" {
            at_frame::pause_at(point);
        }
        let options = ["--size 640x480 --frames 200", ""];
        let ended = program(fabric, [via, ""], &options, &mut Vec::new());
        check!(
            matches!(ended, Err(Error::Fabric(samite::Error::PeerLost { .. }))),
            "{ended:?}"
        );
        Ok(())
    };
    job().orchestrate(name, body, |cluster: &mut Cluster| {
        cluster.wait_point(WORKER, point[0].0);
        cluster.kill(WORKER);
        cluster.all_end();
    });
}

#[test]
fn a_lost_worker_ends_a_job_by_messages() {
    let name = "a_lost_worker_ends_a_job_by_messages";
    lost_worker("req-rep", &[(BEGINS, 0)], name);
}

#[test]
fn a_lost_worker_ends_a_job_without_a_buffer() {
    let name = "a_lost_worker_ends_a_job_without_a_buffer";
    lost_worker("mp-sync", &[(BEGINS, 1)], name);
}

#[test]
fn a_lost_worker_ends_a_job_with_one_buffer() {
    let name = "a_lost_worker_ends_a_job_with_one_buffer";
    lost_worker("mp-async", &[(ENDS, 1)], name);
}

#[test]
fn a_lost_worker_ends_a_job_with_a_buffer_for_each() {
    let name = "a_lost_worker_ends_a_job_with_a_buffer_for_each";
    lost_worker("mp-async-each", &[(BEGINS, 1)], name);
}

#[test]
fn a_lost_worker_ends_a_job_that_pushes() {
    let name = "a_lost_worker_ends_a_job_that_pushes";
    lost_worker("push-pull", &[(ENDS, 1)], name);
}

/// A sink that writes nothing for longer than the deadline holds up all others, and none is taken
/// for lost.
fn slow_sink(via: &'static str, name: &'static str) {
    const DEADLINE: Duration = Duration::from_secs(3);
    let body = move |fabric: &samite::Fabric, _: &[_]| -> Outcome {
        let mut output = String::new();
        if &*fabric.identity().program == "sink" {
            output = format!("--output {}", folder().join("pipe.y4m").display());
        }
        let options = ["--size 640x480 --frames 100", &output];
        Ok(program(fabric, [via, ""], &options, &mut Vec::new())?)
    };
    let job = job().config(|config| config.deadline = DEADLINE);
    job.orchestrate(name, body, |cluster: &mut Cluster| {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let pipe = folder.path().join("pipe.y4m");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.is_ok_and(|status| status.success()), "a pipe");
        give_folder(cluster, SINK, &folder);
        let reader = std::thread::spawn(move || {
            let mut frames = std::fs::File::open(pipe)?;
            std::thread::sleep(DEADLINE * 2);
            std::io::copy(&mut frames, &mut std::io::sink())
        });
        cluster.all_end();
        let bytes = reader.join().expect("a reader").expect("frames");
        assert!(bytes > 100 * 640 * 480, "{bytes}");
    });
}

#[test]
fn a_slow_sink_holds_up_chunks() {
    slow_sink("dsm", "a_slow_sink_holds_up_chunks");
}

#[test]
fn a_slow_sink_holds_up_chunks_with_guards() {
    slow_sink("dsm-strict", "a_slow_sink_holds_up_chunks_with_guards");
}

#[test]
fn a_slow_sink_holds_up_messages() {
    slow_sink("mp-sync", "a_slow_sink_holds_up_messages");
}

#[test]
fn a_slow_sink_holds_up_messages_with_one_buffer() {
    let name = "a_slow_sink_holds_up_messages_with_one_buffer";
    slow_sink("mp-async", name);
}

#[test]
fn a_slow_sink_holds_up_messages_with_a_buffer_for_each() {
    let name = "a_slow_sink_holds_up_messages_with_a_buffer_for_each";
    slow_sink("mp-async-each", name);
}

#[test]
fn a_slow_sink_holds_up_requests() {
    slow_sink("req-rep", "a_slow_sink_holds_up_requests");
}

#[test]
fn a_slow_sink_holds_up_pushes() {
    slow_sink("push-pull", "a_slow_sink_holds_up_pushes");
}

/// A source that ends early: the error is that of the source, and no output is left.
#[test]
fn a_truncated_clip_ends_the_job() {
    let name = "a_truncated_clip_ends_the_job";
    let body = move |fabric: &samite::Fabric, _: &[_]| -> Outcome {
        let [mut clip, mut output] = [String::new(), String::new()];
        match &*fabric.identity().program {
            "source" => {
                let path = folder().join("truncated.y4m");
                write_truncated(&path);
                clip = format!("--file {}", path.display());
            }
            "sink" => output = format!("--output {}", folder().join("out.y4m").display()),
            _ => {}
        }
        let ended = program(fabric, ["mp-async", ""], &[&clip, &output], &mut Vec::new());
        match &*fabric.identity().program {
            "source" => {
                let Err(Error::Video(VideoError::Input { path, source })) = ended else {
                    return Err(Failed::new(format_args!("{ended:?}")));
                };
                check!(path.ends_with("truncated.y4m"), "{path:?}");
                let is_it = matches!(*source, VideoError::Truncated { frame: 2, .. });
                check!(is_it, "{source}");
            }
            _ => check!(
                ended.is_err(),
                "it takes an incomplete clip for a complete one"
            ),
        }
        Ok(())
    };
    job().orchestrate(name, body, |cluster: &mut Cluster| {
        let folder = tempfile::tempdir().expect("a scratch folder");
        for who in [SOURCE, SINK] {
            give_folder(cluster, who, &folder);
        }
        cluster.all_end();
        let files = folder.path().read_dir().expect("the folder").count();
        assert_eq!(files, 1, "there is more than the clip");
    });
}

fn write_truncated(clip: &Path) {
    let mut stream = b"YUV4MPEG2 W200 H111 F25:1 Cmono\n".to_vec();
    for number in 0..3 {
        stream.extend(b"FRAME\n");
        stream.extend(vec![number; 200 * 111]);
    }
    stream.pop();
    std::fs::write(clip, stream).expect("a scratch file");
}
