//! How the job ends when something fails, and what is left then; and the live page, which nothing
//! may depend on.

mod at_frame;

use at_frame::{BEGINS, ENDS};
use clap::Parser;
use samite_testkit::{
    Cluster, Failed, Outcome, Units, Who, check, pause, point, programs, same, say,
};
use samite_video::Error as VideoError;
use samite_video::job::{Error, sink, source, worker};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const SOURCE: Who = Who::Unit(0);
const WORKER: Who = Who::Unit(1);
const SINK: Who = Who::Unit(2);

/// Runs the program of this unit. `options`: those of the source and of the sink.
fn program(
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

fn job() -> Units {
    let job = programs(&[("source", 1), ("worker", 1), ("sink", 1)]);
    job.services(samite::services())
}

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

/// Waits until it is so, but not for ever.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < end, "not so: {what}");
        std::thread::yield_now();
    }
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

/// Announces the address of the live page.
struct Announces(Vec<u8>);

impl Write for Announces {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        let text = String::from_utf8_lossy(&self.0);
        if let Some(address) = text.strip_prefix("live page: ") {
            say(address.trim());
            point("live");
        }
        self.0.clear();
        Ok(())
    }
}

/// Returns the address that the sink has announced.
fn live_page(cluster: &mut Cluster, sink: Who) -> String {
    cluster.wait_point(sink, "live");
    let lines = cluster.lines(sink).iter();
    let mut said = lines.filter_map(|line| line.strip_prefix("@say "));
    said.next_back().expect("the address").to_owned()
}

fn get(address: &str, path: &str) -> (i32, Vec<u8>) {
    let request = minreq::get(format!("{address}{path}")).with_timeout(60);
    let answer = request.send().expect("the page answers");
    (answer.status_code, answer.into_bytes())
}

#[test]
fn the_live_page_shows_frames_and_loads() {
    let body = move |fabric: &samite::Fabric, _: &[_]| -> Outcome {
        if &*fabric.identity().program == "worker" {
            pause("here");
        }
        // More frames than the test will wait for.
        let options = ["--size 1280x720 --frames 1000000", "--live"];
        let board = ["dsm", "--node i7"];
        Ok(program(
            fabric,
            board,
            &options,
            &mut Announces(Vec::new()),
        )?)
    };
    let name = "the_live_page_shows_frames_and_loads";
    job().orchestrate(name, body, |cluster: &mut Cluster| {
        let address = live_page(cluster, SINK);
        assert!(address.starts_with("http://127.0.0.1:"), "{address}");
        let (status, page) = get(&address, "");
        assert!(status == 200 && page.starts_with(b"<!DOCTYPE html>"));
        assert_eq!(get(&address, "frame.png").0, 204);
        assert_eq!(get(&address, "load.json"), (200, b"{}".to_vec()));
        assert_eq!(get(&address, "../etc/passwd").0, 404);
        let posted = minreq::post(&address).send().expect("the page answers");
        assert_eq!(posted.status_code, 405);
        cluster.wait_point(WORKER, "here");
        cluster.release(WORKER);
        // A picture of every second pixel of the latest frame, then another one.
        let mut picture = Vec::new();
        for _ in 0..2 {
            let last = picture.clone();
            until("there is another picture", || {
                let (status, png) = get(&address, "frame.png");
                picture = png;
                status == 200 && picture != last
            });
            let reader = png::Decoder::new(std::io::Cursor::new(&picture)).read_info();
            let mut reader = reader.expect("a picture");
            assert_eq!(reader.info().size(), (640, 360));
            let mut pixels = vec![0; 640 * 360];
            reader.next_frame(&mut pixels).expect("a picture");
            assert!(pixels.iter().any(|pixel| *pixel != pixels[0]));
        }
        // The load of the worker comes once a second.
        until("there is a load", || {
            let (_, load) = get(&address, "load.json");
            let load: serde_json::Value = serde_json::from_slice(&load).expect("JSON");
            let worker = &load["workers"][0];
            worker["name"] == "i7" && worker["load"].as_f64() > Some(0.0)
        });
        for who in [SOURCE, WORKER, SINK] {
            cluster.kill(who);
        }
        cluster.all_end();
    });
}

/// Returns what the live page says of the workers.
fn workers_of(address: &str) -> serde_json::Value {
    let (_, load) = get(address, "load.json");
    let mut load: serde_json::Value = serde_json::from_slice(&load).expect("JSON");
    load["workers"].take()
}

#[test]
fn the_live_page_shows_a_sequential_run() {
    let body = move |fabric: &samite::Fabric, _: &[_]| -> Outcome {
        let options = ["", "--live --size 640x480 --frames 100000000"];
        let mut out = Announces(Vec::new());
        Ok(program(fabric, ["sequential", ""], &options, &mut out)?)
    };
    let name = "the_live_page_shows_a_sequential_run";
    job().orchestrate(name, body, |cluster: &mut Cluster| {
        let address = live_page(cluster, SINK);
        until("the run goes on", || {
            let worker = &workers_of(&address)[0];
            worker["frames"].as_u64() > Some(1) && worker["load"].as_f64() > Some(0.0)
        });
        cluster.kill(SINK);
        cluster.all_end();
    });
}

#[test]
fn the_live_page_shows_that_a_worker_is_lost() {
    let body = move |fabric: &samite::Fabric, _: &[_]| -> Outcome {
        let options = ["--size 640x480 --frames 1000000", "--live"];
        let mut out = Announces(Vec::new());
        Ok(program(fabric, ["dsm", ""], &options, &mut out)?)
    };
    let name = "the_live_page_shows_that_a_worker_is_lost";
    let job = programs(&[("source", 1), ("worker", 2), ("sink", 1)]);
    let job = job.services(samite::services());
    job.orchestrate(name, body, |cluster: &mut Cluster| {
        let all = [0, 1, 2, 3].map(Who::Unit);
        let address = live_page(cluster, all[3]);
        let are_lost = |lost: [bool; 2]| {
            let workers = workers_of(&address);
            (0..2).all(|rank| workers[rank]["is_lost"] == lost[rank])
        };
        until("both work", || are_lost([false; 2]));
        cluster.kill(all[1]);
        until("one is lost", || are_lost([true, false]));
        for who in [all[0], all[2], all[3]] {
            cluster.kill(who);
        }
        cluster.all_end();
    });
}

/// Browsers that do not end their requests, or do not read. `picture`: of the latest frame.
fn stalled(picture: bool, name: &str) {
    let body = move |fabric: &samite::Fabric, _: &[_]| -> Outcome {
        if &*fabric.identity().program == "worker" {
            at_frame::pause_at(&[(BEGINS, 2)]);
        }
        let options = ["--size 1280x720 --frames 100", "--live"];
        let ended = program(fabric, ["dsm", ""], &options, &mut Announces(Vec::new()));
        same!(ended.is_ok(), true);
        Ok(())
    };
    let path = if picture { "frame.png" } else { "" };
    job().orchestrate(name, body, |cluster: &mut Cluster| {
        let address = live_page(cluster, SINK);
        let host = address.trim_start_matches("http://").trim_end_matches('/');
        // The sink has shown a frame; the worker has another one, and most are still to come.
        cluster.wait_point(WORKER, BEGINS);
        until("there is a picture", || get(&address, "frame.png").0 == 200);
        let mut browsers = Vec::new();
        for _ in 0..8 {
            let mut browser = std::net::TcpStream::connect(host).expect("the page");
            let request = format!("GET /{path} HTTP/1.1\r\nHost: localhost\r\n");
            browser.write_all(request.as_bytes()).expect("the page");
            // Every second one ends its request, and does not read the answer.
            if browsers.len() % 2 == 0 {
                browser.write_all(b"\r\n").expect("the page");
                assert_eq!(browser.peek(&mut [0]).expect("an answer"), 1);
            }
            browsers.push(browser);
        }
        // Others are answered meanwhile.
        assert_eq!(get(&address, "load.json").0, 200);
        cluster.release(WORKER);
        cluster.all_end();
    });
}

#[test]
fn a_browser_that_does_not_read_holds_up_nothing() {
    stalled(false, "a_browser_that_does_not_read_holds_up_nothing");
}

#[test]
fn a_browser_that_does_not_read_pictures_holds_up_nothing() {
    let name = "a_browser_that_does_not_read_pictures_holds_up_nothing";
    stalled(true, name);
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
