//! What the ways by messages share.
//!
//! | message | from | to | content |
//! |---|---|---|---|
//! | [`HEADER`] | source | all, once | the header |
//! | [`FRAME`], with its number | source | a worker | the pixels |
//! | [`END`] | source | each worker | nothing: there are no more frames |
//! | [`RESULT`], with its number | a worker | sink | the pixels |
//! | [`DONE`], with the number of frames | source | sink | nothing |
//! | [`READY`] | a worker | source | nothing: it requests a frame (`req-rep`) |
//! | [`TAKEN`] | sink | a worker | nothing: the result has arrived (`req-rep`) |
//!
//! The highest byte of a tag says what the message is; the number is below it. A worker that is
//! lost ends the job: its frames were in its memory alone.

use super::super::{Error, Header, Result, SINK, SOURCE, WORKERS};
use super::{Pixels, Processed};
use samite::{Fabric, Match, PeerId, Status};

const HEADER: u64 = 0x10 << KIND;
pub(super) const FRAME: u64 = 0x20 << KIND;
const END: u64 = 0x21 << KIND;
const RESULT: u64 = 0x30 << KIND;
const DONE: u64 = 0x31 << KIND;
pub(super) const READY: u64 = 0x40 << KIND;
pub(super) const TAKEN: u64 = 0x50 << KIND;

/// The bits below the kind of a message.
const KIND: u32 = 56;
/// The number in a tag.
const NUMBER: u64 = (1 << KIND) - 1;
/// What is compared to receive a frame or [`END`], a result or [`DONE`].
const PAIR: u64 = 0xfe << KIND;

/// Returns the tag of a message about a frame.
pub(super) fn numbered(kind: u64, number: u64) -> u64 {
    kind | (number & NUMBER)
}

fn unexpected(status: &Status) -> Error {
    let Status { tag, len, from, .. } = status;
    Error::Unexpected(format!(
        "a message of {len} bytes, tag {tag:#x}, from {from}"
    ))
}

/// Returns the only unit of a program.
pub(in super::super) fn only(fabric: &Fabric, program: &str) -> Result<PeerId> {
    let units = fabric.program(program)?;
    let none = || Error::Unexpected(format!("no unit of the program {program}"));
    units.first().copied().ok_or_else(none)
}

/// Waits for a message from any of `whom`; ends if one of them is lost.
pub(super) fn await_any(
    fabric: &Fabric,
    what: &'static str,
    whom: &[PeerId],
    wants: Match,
) -> Result<Status> {
    Ok(fabric.wait_stepping(what, whom, || fabric.probe(wants), || false)?)
}

fn receive_header(fabric: &Fabric, source: PeerId) -> Result<Header> {
    let (_, bytes) = fabric.recv_vec(Match::from(source, HEADER))?;
    let (words, rest) = bytes.as_chunks();
    let words: Vec<u64> = words.iter().copied().map(u64::from_le_bytes).collect();
    match rest.is_empty() {
        true => Header::from_words(&words),
        false => Err(Error::Unexpected(format!(
            "a header of {} bytes",
            bytes.len()
        ))),
    }
}

/// The source, for all ways: whom it knows, and what it has sent.
pub(super) struct Outlet {
    pub(super) fabric: Fabric,
    pub(super) workers: Vec<PeerId>,
    sink: PeerId,
    /// The rank of the worker whose turn it is.
    turn: usize,
    /// The messages with frames or about them.
    pub(super) messages: u64,
}

impl Outlet {
    pub(super) fn new(fabric: &Fabric, header: Header) -> Result<Outlet> {
        let workers = fabric.program(WORKERS)?;
        let sink = only(fabric, SINK)?;
        let words = header.to_words().map(u64::to_le_bytes);
        for to in workers.iter().chain([&sink]) {
            fabric.send(*to, HEADER, words.as_flattened())?;
        }
        Ok(Outlet {
            fabric: fabric.clone(),
            workers,
            sink,
            turn: 0,
            messages: 0,
        })
    }

    /// Returns the rank of the next worker in turn.
    pub(super) fn next(&mut self) -> usize {
        let next = self.turn;
        self.turn = (next + 1) % self.workers.len();
        next
    }

    /// Tells all that there are no more frames.
    pub(super) fn finish(&mut self, frames: u64) -> Result<()> {
        for worker in &self.workers {
            self.fabric.send(*worker, END, &[])?;
        }
        Ok(self.fabric.send(self.sink, numbered(DONE, frames), &[])?)
    }
}

/// A worker, for all ways: whom it knows, and what it has sent.
pub(super) struct Mill {
    pub(super) fabric: Fabric,
    pub(super) header: Header,
    pub(super) source: PeerId,
    pub(super) sink: PeerId,
    pub(super) messages: u64,
}

impl Mill {
    pub(super) fn new(fabric: &Fabric) -> Result<Mill> {
        let (source, sink) = (only(fabric, SOURCE)?, only(fabric, SINK)?);
        Ok(Mill {
            fabric: fabric.clone(),
            header: receive_header(fabric, source)?,
            source,
            sink,
            messages: 0,
        })
    }

    /// Waits for a frame. Returns its number, and its pixels; `None` after the last one.
    pub(super) fn receive(&self) -> Result<Option<(u64, Vec<u8>)>> {
        let wants = Match::from(self.source, FRAME).masked(PAIR);
        let (status, pixels) = self.fabric.recv_vec(wants)?;
        let is_frame = status.tag & !NUMBER == FRAME && pixels.len() == self.header.size.pixels();
        match status.tag {
            END => Ok(None),
            tag if is_frame => Ok(Some((tag & NUMBER, pixels))),
            _ => Err(unexpected(&status)),
        }
    }
}

/// A worker that takes a frame, computes, and sends the result to the sink.
pub(super) struct AtWorker {
    mill: Mill,
    result: Vec<u8>,
}

impl AtWorker {
    pub(super) fn new(fabric: &Fabric) -> Result<Self> {
        let mill = Mill::new(fabric)?;
        let result = vec![0; mill.header.size.pixels()];
        Ok(AtWorker { mill, result })
    }
}

impl super::AtWorker for AtWorker {
    fn header(&self) -> Header {
        self.mill.header
    }

    fn process(&mut self, work: &mut dyn FnMut(&[u8], &mut [u8])) -> Result<bool> {
        let mill = &mut self.mill;
        let Some((number, frame)) = mill.receive()? else {
            return Ok(false);
        };
        work(&frame, &mut self.result);
        mill.fabric
            .send(mill.sink, numbered(RESULT, number), &self.result)?;
        mill.messages += 1;
        Ok(true)
    }

    fn messages(&self) -> u64 {
        self.mill.messages
    }
}

/// Returns the tag of a result.
pub(super) fn result(number: u64) -> u64 {
    numbered(RESULT, number)
}

/// A sink that takes the results of all workers.
pub(super) struct FromWorkers {
    pub(super) fabric: Fabric,
    header: Header,
    pub(super) workers: Vec<PeerId>,
    /// The workers; and the source until the number of frames is known.
    awaited: Vec<PeerId>,
    frames: Option<u64>,
    received: u64,
}

impl FromWorkers {
    pub(super) fn new(fabric: &Fabric) -> Result<Self> {
        let source = only(fabric, SOURCE)?;
        let header = receive_header(fabric, source)?;
        let workers = fabric.program(WORKERS)?;
        let mut awaited = workers.clone();
        awaited.push(source);
        Ok(FromWorkers {
            fabric: fabric.clone(),
            header,
            workers,
            awaited,
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
            let wants = Match::any(RESULT).masked(PAIR);
            let found = await_any(&self.fabric, "a processed frame", &self.awaited, wants)?;
            let (status, bytes) = self.fabric.recv_vec(Match::from(found.from, found.tag))?;
            let worker = self
                .workers
                .iter()
                .position(|worker| *worker == status.from);
            let is_whole = bytes.len() == self.header.size.pixels();
            match (status.tag & !NUMBER, worker) {
                (DONE, None) => {
                    self.frames = Some(status.tag & NUMBER);
                    self.awaited.truncate(self.workers.len());
                }
                (RESULT, Some(worker)) if is_whole => {
                    self.received += 1;
                    return Ok(Some(Processed {
                        number: status.tag & NUMBER,
                        worker,
                        pixels: Pixels::Message(bytes),
                    }));
                }
                _ => return Err(unexpected(&status)),
            }
        }
        Ok(None)
    }

    fn messages(&self) -> Result<u64> {
        Ok(0)
    }
}
