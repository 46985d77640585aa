//! Frames in messages: a worker requests a frame, the source replies, and the worker sends the
//! result to the sink. Each worker has requested the next frame while it computes one.

use super::{Error, Header, Pixels, Processed, Result, SINK, SLOTS, SOURCE, WORKERS};
use samite::{Fabric, Match, PeerId};

/// From the source to all, once.
const HEADER: u64 = 1;
/// From a worker to the source: it is ready for a frame.
const READY: u64 = 2;
/// From the source to a worker: the number and the pixels; nothing after the last frame.
const FRAME: u64 = 3;
/// From a worker to the sink: the number and the pixels. From the source: the number of frames.
const RESULT: u64 = 4;

/// The bytes of a number before the pixels.
pub(super) const NUMBER: usize = 8;

fn number_of(message: &[u8]) -> Result<u64> {
    let number = message.first_chunk::<NUMBER>();
    let unexpected = || Error::Unexpected(format!("a message of {} bytes", message.len()));
    Ok(u64::from_le_bytes(*number.ok_or_else(unexpected)?))
}

/// Checks the length of a frame.
fn check(message: &[u8], header: Header) -> Result<u64> {
    match message.len() == NUMBER + header.size.pixels() {
        true => number_of(message),
        false => {
            let bytes = message.len();
            Err(Error::Unexpected(format!("a frame of {bytes} bytes")))
        }
    }
}

/// Returns the only unit of a program.
fn only(fabric: &Fabric, program: &str) -> Result<PeerId> {
    let units = fabric.program(program)?;
    let none = || Error::Unexpected(format!("no unit of the program {program}"));
    units.first().copied().ok_or_else(none)
}

fn receive_header(fabric: &Fabric, source: PeerId) -> Result<Header> {
    let (_, bytes) = fabric.recv_vec(Match::from(source, HEADER))?;
    let words = bytes.chunks(NUMBER).map(number_of);
    Header::from_words(&words.collect::<Result<Vec<u64>>>()?)
}

pub(super) struct ToWorkers {
    fabric: Fabric,
    workers: Vec<PeerId>,
    sink: PeerId,
    message: Vec<u8>,
}

impl ToWorkers {
    pub(super) fn new(fabric: &Fabric, header: Header) -> Result<Self> {
        let workers = fabric.program(WORKERS)?;
        let sink = only(fabric, SINK)?;
        let words = header.to_words().map(u64::to_le_bytes);
        for to in workers.iter().chain([&sink]) {
            fabric.send(*to, HEADER, words.as_flattened())?;
        }
        Ok(ToWorkers {
            fabric: fabric.clone(),
            workers,
            sink,
            message: Vec::new(),
        })
    }

    /// Waits for a worker that is ready.
    fn wait(&self) -> Result<PeerId> {
        let (status, _) = self.fabric.recv_vec(Match::any(READY))?;
        Ok(status.from)
    }
}

impl super::ToWorkers for ToWorkers {
    fn send(&mut self, number: u64, pixels: &[u8]) -> Result<()> {
        self.message.clear();
        self.message.extend_from_slice(&number.to_le_bytes());
        self.message.extend_from_slice(pixels);
        let worker = self.wait()?;
        self.fabric.send(worker, FRAME, &self.message)?;
        Ok(())
    }

    fn finish(&mut self, frames: u64) -> Result<()> {
        for _ in 0..self.workers.len() * SLOTS {
            self.wait()?;
        }
        for worker in &self.workers {
            self.fabric.send(*worker, FRAME, &[])?;
        }
        self.fabric.send(self.sink, RESULT, &frames.to_le_bytes())?;
        Ok(())
    }
}

pub(super) struct AtWorker {
    fabric: Fabric,
    header: Header,
    source: PeerId,
    sink: PeerId,
    result: Vec<u8>,
}

impl AtWorker {
    pub(super) fn new(fabric: &Fabric) -> Result<Self> {
        let (source, sink) = (only(fabric, SOURCE)?, only(fabric, SINK)?);
        let header = receive_header(fabric, source)?;
        for _ in 0..SLOTS {
            fabric.send(source, READY, &[])?;
        }
        Ok(AtWorker {
            fabric: fabric.clone(),
            header,
            source,
            sink,
            result: vec![0; NUMBER + header.size.pixels()],
        })
    }
}

impl super::AtWorker for AtWorker {
    fn header(&self) -> Header {
        self.header
    }

    fn process(&mut self, work: &mut dyn FnMut(&[u8], &mut [u8])) -> Result<bool> {
        let (_, frame) = self.fabric.recv_vec(Match::from(self.source, FRAME))?;
        if frame.is_empty() {
            return Ok(false);
        }
        let number = check(&frame, self.header)?;
        let (head, pixels) = self.result.split_at_mut(NUMBER);
        head.copy_from_slice(&number.to_le_bytes());
        work(&frame[NUMBER..], pixels);
        self.fabric.send(self.sink, RESULT, &self.result)?;
        self.fabric.send(self.source, READY, &[])?;
        Ok(true)
    }
}

pub(super) struct FromWorkers {
    fabric: Fabric,
    header: Header,
    workers: Vec<PeerId>,
    /// The number of frames, once it is known.
    frames: Option<u64>,
    received: u64,
}

impl FromWorkers {
    pub(super) fn new(fabric: &Fabric) -> Result<Self> {
        let header = receive_header(fabric, only(fabric, SOURCE)?)?;
        Ok(FromWorkers {
            fabric: fabric.clone(),
            header,
            workers: fabric.program(WORKERS)?,
            frames: None,
            received: 0,
        })
    }
}

impl super::FromWorkers for FromWorkers {
    fn header(&self) -> Header {
        self.header
    }

    fn next(&mut self) -> Result<Option<Processed>> {
        while self.frames != Some(self.received) {
            let (status, bytes) = self.fabric.recv_vec(Match::any(RESULT))?;
            let worker = (self.workers.iter()).position(|worker| *worker == status.from);
            let Some(worker) = worker else {
                self.frames = Some(number_of(&bytes)?);
                continue;
            };
            let number = check(&bytes, self.header)?;
            self.received += 1;
            return Ok(Some(Processed {
                number,
                worker,
                pixels: Pixels::Message(bytes),
            }));
        }
        Ok(None)
    }

    fn messages(&self) -> Result<Option<u64>> {
        Ok(None)
    }
}
