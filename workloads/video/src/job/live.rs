//! The live page: the processed stream and the load of each worker, in a browser.
//!
//! | path | answer |
//! |---|---|
//! | `/` | the page, which asks for the two others again and again |
//! | `/frame.png` | the latest frame, as a small picture; 204 as long as there is none |
//! | `/load.json` | how far the job is, and the load of each worker |
//!
//! The page never holds up the job. Threads of its own answer (`http`); the sink copies a frame
//! only if somebody has looked at the one before, and only every n-th pixel of it.

use super::http::{Answer, HttpServer};
use super::{Error, Result};
use crate::Frame;
use parking_lot::Mutex;
use serde::Serialize;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const PAGE: &str = include_str!("live.html");
/// The widest picture.
const WIDTH: usize = 960;
/// The time between two changes of the load.
const PAUSE: Duration = Duration::from_millis(200);

/// A picture of the latest frame.
#[derive(Clone, Default)]
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

/// What the page says of a worker.
#[derive(Debug, Serialize)]
pub(super) struct Worker {
    pub(super) name: String,
    pub(super) frames: u64,
    /// The part of its time in which it has computed of late.
    pub(super) load: f64,
    /// How long ago it has said so.
    pub(super) silent_s: f64,
    pub(super) is_lost: bool,
}

/// The server of the page.
pub(super) struct Live {
    shown: Arc<Shown>,
    server: HttpServer,
    begin: Instant,
    told: Option<Instant>,
}

impl Live {
    pub(super) fn start(address: SocketAddr) -> Result<Live> {
        let shown = Arc::new(Shown::default());
        shown.is_wanted.store(true, Ordering::Relaxed);
        let answers = Arc::clone(&shown);
        let server = HttpServer::start(address, move |path| answer(path, &answers));
        let server = server.map_err(|error| Error::Live {
            address,
            why: error.to_string(),
        })?;
        Ok(Live {
            shown,
            server,
            begin: Instant::now(),
            told: None,
        })
    }

    /// Where the page is.
    pub(super) fn address(&self) -> SocketAddr {
        self.server.address()
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

    /// Shows how far the job is, if the last time was long enough ago.
    pub(super) fn tell(&mut self, frames: u64, workers: impl FnOnce() -> Vec<Worker>) {
        if self.told.is_some_and(|last| last.elapsed() < PAUSE) {
            return;
        }
        self.told = Some(Instant::now());
        let elapsed = self.begin.elapsed().as_secs_f64();
        let load = serde_json::json!({
            "frames": frames,
            "elapsed_s": elapsed,
            "frames_per_s": frames as f64 / elapsed.max(1e-9),
            "workers": workers(),
        });
        *self.shown.load.lock() = load.to_string();
    }
}

/// Answers a request.
fn answer(path: &str, shown: &Shown) -> Answer {
    match path {
        "/" => Answer::page("text/html; charset=utf-8", PAGE),
        "/load.json" => {
            let load = shown.load.lock().clone();
            let load = if load.is_empty() {
                "{}".to_owned()
            } else {
                load
            };
            Answer::page("application/json", load)
        }
        "/frame.png" => {
            shown.is_wanted.store(true, Ordering::Relaxed);
            // The sink waits for no more than the copy.
            let picture = shown.picture.lock().clone();
            match encode(&picture) {
                Some(png) => Answer::page("image/png", png),
                None => Answer::only(204),
            }
        }
        _ => Answer::only(404),
    }
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
