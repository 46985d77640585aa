//! The live page: the processed stream and the load of each worker, in a browser.
//!
//! | path | answer |
//! |---|---|
//! | `/` | the page, which asks for the two others again and again |
//! | `/frame.png` | the latest frame, as a small picture; 204 as long as there is none |
//! | `/load.json` | how far the job is, and the load of each worker |
//!
//! The page never holds up the job. A thread of its own answers; the sink copies a frame only if
//! somebody has looked at the one before, and only every n-th pixel of it.

use super::measured::Told;
use super::{Error, Result};
use crate::Frame;
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tiny_http::{Header, Method, Request, Response, Server};

const PAGE: &str = include_str!("live.html");
/// The widest picture.
const WIDTH: usize = 960;
/// The time between two changes of the load.
const PAUSE: Duration = Duration::from_millis(200);

/// A picture of the latest frame.
#[derive(Default)]
struct Picture {
    width: usize,
    pixels: Vec<u8>,
}

#[derive(Default)]
struct Shown {
    /// Whether somebody has looked at the picture.
    is_wanted: AtomicBool,
    picture: Mutex<Picture>,
    load: Mutex<String>,
}

/// The server of the page.
pub(super) struct Live {
    address: SocketAddr,
    shown: Arc<Shown>,
    server: Arc<Server>,
    begin: Instant,
    told: Option<Instant>,
}

impl Live {
    pub(super) fn start(address: SocketAddr) -> Result<Live> {
        let wrong = |why: String| Error::Live { address, why };
        let server = Server::http(address).map_err(|error| wrong(error.to_string()))?;
        let bound = server.server_addr().to_ip();
        let shown = Arc::new(Shown::default());
        shown.is_wanted.store(true, Ordering::Relaxed);
        let live = Live {
            address: bound.unwrap_or(address),
            shown: Arc::clone(&shown),
            server: Arc::new(server),
            begin: Instant::now(),
            told: None,
        };
        let server = Arc::clone(&live.server);
        // Nobody waits for its end: a browser that does not read may keep it.
        std::thread::Builder::new()
            .name("live page".to_owned())
            .spawn(move || {
                while let Ok(request) = server.recv() {
                    answer(request, &shown);
                }
            })?;
        Ok(live)
    }

    /// Where the page is.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Shows a frame if somebody looks.
    pub(super) fn show(&self, frame: &Frame) {
        if !self.shown.is_wanted.swap(false, Ordering::Relaxed) {
            return;
        }
        let width = frame.size.width();
        let step = width.div_ceil(WIDTH);
        let mut picture = self.shown.picture.lock();
        picture.width = width.div_ceil(step);
        picture.pixels.clear();
        for row in frame.pixels.chunks_exact(width).step_by(step) {
            picture.pixels.extend(row.iter().step_by(step));
        }
    }

    /// Shows how far the job is.
    pub(super) fn tell(&mut self, frames: u64, of_workers: &[u64], told: &Told) {
        if self.told.is_some_and(|last| last.elapsed() < PAUSE) {
            return;
        }
        self.told = Some(Instant::now());
        let workers = of_workers.iter().zip(&told.by_workers).zip(&told.loads);
        let workers: Vec<_> = workers
            .enumerate()
            .map(|(rank, ((frames, measured), load))| {
                let name = measured.board.clone();
                let name = name.unwrap_or_else(|| format!("worker {rank}"));
                serde_json::json!({ "name": name, "frames": frames, "load": load })
            })
            .collect();
        let elapsed = self.begin.elapsed().as_secs_f64();
        let load = serde_json::json!({
            "frames": frames,
            "elapsed_s": elapsed,
            "frames_per_s": frames as f64 / elapsed.max(1e-9),
            "workers": workers,
        });
        *self.shown.load.lock() = load.to_string();
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.server.unblock();
    }
}

/// Answers a request. A browser that has gone away is no error.
fn answer(request: Request, shown: &Shown) {
    let path = request.url().split('?').next().unwrap_or_default();
    let result = match (request.method(), path) {
        (Method::Get, "/") => respond(request, "text/html; charset=utf-8", PAGE.into()),
        (Method::Get, "/load.json") => {
            let load = shown.load.lock().clone();
            let load = if load.is_empty() {
                "{}".to_owned()
            } else {
                load
            };
            respond(request, "application/json", load.into())
        }
        (Method::Get, "/frame.png") => {
            shown.is_wanted.store(true, Ordering::Relaxed);
            // The lock ends before the picture is sent: a browser may take it slowly, or never.
            let png = encode(&shown.picture.lock());
            match png {
                Some(png) => respond(request, "image/png", png),
                None => request.respond(Response::empty(204)),
            }
        }
        (Method::Get, _) => request.respond(Response::empty(404)),
        _ => request.respond(Response::empty(405)),
    };
    if let Err(error) = result {
        tracing::debug!(%error, "the live page");
    }
}

fn respond(request: Request, kind: &str, body: Vec<u8>) -> std::io::Result<()> {
    let mut response = Response::from_data(body);
    for (name, value) in [("Content-Type", kind), ("Cache-Control", "no-store")] {
        if let Ok(header) = Header::from_bytes(name, value) {
            response.add_header(header);
        }
    }
    request.respond(response)
}

/// Returns the picture as PNG, if there is one.
fn encode(picture: &Picture) -> Option<Vec<u8>> {
    let height = picture.pixels.len().checked_div(picture.width)?;
    let side = |length: usize| u32::try_from(length).ok();
    let mut png = Vec::new();
    let mut encoder = png::Encoder::new(&mut png, side(picture.width)?, side(height)?);
    encoder.set_color(png::ColorType::Grayscale);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_compression(png::Compression::Fast);
    let mut writer = encoder.write_header().ok()?;
    writer.write_image_data(&picture.pixels).ok()?;
    writer.finish().ok()?;
    Some(png)
}
