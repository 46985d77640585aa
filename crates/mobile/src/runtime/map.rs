//! Calls whose kernel is applied to an input: a segment that this unit maps, piece by piece.

use crate::input::Input;
use samite_engines::{Context, Instance, Limits, PAYLOAD_MAX, Trap};
use samite_fabric::{Fabric, Remote};
use std::time::Instant;

/// Bytes of an input that a kernel gets at once, at most: as many whole elements as fit.
pub const CHUNK: usize = 32 << 10;
/// Longest argument of such a call, in bytes.
pub const ARGUMENT_MAX: usize = 16 << 10;
/// The argument begins at this byte of the payload, and the bytes of the input at a multiple of it.
const ALIGNED: usize = 16;

/// Runs an entry on each chunk of an input. The replies, one after another, are left in the context
/// as its reply.
pub(super) fn map(
    fabric: &Fabric,
    instance: &mut dyn Instance,
    entry: u8,
    mut context: Box<Context>,
    payload: &[u8],
) -> (Box<Context>, Result<(), Trap>) {
    let (limits, origin) = (*context.limits(), context.origin());
    // Each chunk is a call that can only reply.
    let of_chunk = Limits {
        hops: 0,
        may_spawn: false,
        may_define: false,
        ..limits
    };
    let mut chunks = match Chunks::new(fabric, payload) {
        Ok(chunks) => chunks,
        Err(trap) => return (context, Err(trap)),
    };
    let (begin, mut replies) = (Instant::now(), Vec::new());
    loop {
        let next = match chunks.next() {
            Ok(Some(next)) => next,
            Ok(None) => break,
            Err(trap) => return (context, Err(trap)),
        };
        let Some(left) = limits.run.checked_sub(begin.elapsed()) else {
            return (context, Err(Trap::Time));
        };
        context.begin(
            Limits {
                run: left,
                ..of_chunk
            },
            origin,
            PAYLOAD_MAX,
        );
        let ended;
        (context, ended) = instance.call(entry, context, next);
        if ended.is_err() {
            return (context, ended);
        }
        replies.extend_from_slice(context.replied().unwrap_or_default());
        if replies.len() as u64 > PAYLOAD_MAX {
            let (bytes, most) = (replies.len() as u64, PAYLOAD_MAX);
            return (context, Err(Trap::Payload { bytes, most }));
        }
    }
    context.begin(of_chunk, origin, PAYLOAD_MAX);
    let replied = context.reply(&replies);
    (context, replied)
}

/// An input, in the form in which a kernel gets it.
///
/// ```text
///   8 bytes of the input before these   4 length of the argument   4 zero
///   the argument, padded with zeros to a multiple of 16
///   bytes of the input
/// ```
struct Chunks {
    remote: Remote,
    runs: Box<dyn Iterator<Item = Option<u64>>>,
    /// The run that is being read: where it goes on, and how many bytes of it are left.
    at: u64,
    left: u64,
    run: u64,
    /// Bytes of a chunk: whole elements.
    chunk: usize,
    payload: Vec<u8>,
    /// Where the bytes of the input begin.
    begin: usize,
    before: u64,
}

impl Chunks {
    fn new(fabric: &Fabric, payload: &[u8]) -> Result<Chunks, Trap> {
        let cut = || Trap::Input("the place of its input is cut off, or too long".into());
        let (input, argument) = Input::decode(payload).ok_or_else(cut)?;
        if argument.len() > ARGUMENT_MAX {
            let (bytes, most) = (argument.len() as u64, ARGUMENT_MAX as u64);
            return Err(Trap::Payload { bytes, most });
        }
        let remote = fabric.attach(input.key);
        let remote = remote.map_err(|error| Trap::Input(error.to_string()))?;
        if remote.readable().is_none() && remote.mapped().is_none() {
            let text = "its input is not mapped here: call a unit on the node of the segment";
            return Err(Trap::Input(text.into()));
        }
        let mut payload = vec![0; ALIGNED];
        payload[8..12].copy_from_slice(&(argument.len() as u32).to_le_bytes());
        payload.extend_from_slice(argument);
        payload.resize(payload.len().next_multiple_of(ALIGNED), 0);
        Ok(Chunks {
            remote,
            begin: payload.len(),
            payload,
            at: 0,
            left: 0,
            run: input.run,
            chunk: CHUNK / input.element as usize * input.element as usize,
            before: 0,
            runs: Box::new(input.runs()),
        })
    }

    /// Returns the payload for the next chunk, or none after the last one.
    fn next(&mut self) -> Result<Option<&[u8]>, Trap> {
        self.payload.truncate(self.begin);
        let end = self.begin + self.chunk;
        while self.payload.len() < end {
            if self.left == 0 {
                let Some(at) = self.runs.next() else { break };
                let outside = || Trap::Input("its input lies outside of its segment".into());
                (self.at, self.left) = (at.ok_or_else(outside)?, self.run);
            }
            let now = self.left.min((end - self.payload.len()) as u64);
            self.copy(now)?;
            self.at += now;
            self.left -= now;
        }
        let bytes = (self.payload.len() - self.begin) as u64;
        self.payload[..8].copy_from_slice(&self.before.to_le_bytes());
        self.before += bytes;
        Ok((bytes > 0).then_some(&self.payload[..]))
    }

    /// Appends bytes of the segment.
    fn copy(&mut self, len: u64) -> Result<(), Trap> {
        let (from, all) = (self.at, self.remote.key().bytes);
        let end = from.checked_add(len).filter(|end| *end <= all);
        let outside = || {
            let to = from.saturating_add(len);
            Trap::Input(format!(
                "its input lies outside of its segment: {from}..{to} of {all}"
            ))
        };
        let end = end.ok_or_else(outside)?;
        if let Some(readable) = self.remote.readable() {
            let bytes = readable.as_slice::<u8>().get(from as usize..end as usize);
            self.payload.extend_from_slice(bytes.ok_or_else(outside)?);
        } else if let Some(mapped) = self.remote.mapped().filter(|all| all.contains(from, len)) {
            let begin = self.payload.len();
            self.payload.resize(begin + len as usize, 0);
            mapped.read(from, &mut self.payload[begin..]);
        } else {
            return Err(outside());
        }
        Ok(())
    }
}
