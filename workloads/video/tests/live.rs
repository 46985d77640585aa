//! The live page, which nothing may depend on.

mod at_frame;
mod job_of_three;

use at_frame::BEGINS;
use job_of_three::{SINK, SOURCE, WORKER, job, program, until};
use samite_testkit::{Cluster, Outcome, Who, pause, point, programs, same, say};
use std::io::Write;

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
