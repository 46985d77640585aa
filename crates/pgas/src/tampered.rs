//! For tests: an owner of words whose answers are others than they should be, and a unit whose operation is late.

use samite_fabric::testing::{RawFrame, Tamper, tamper};
use samite_fabric::transport::Class;
use samite_fabric::{Fabric, PeerId};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Lies are told up to this one. Whoever asks for so many has no deadline.
pub(crate) const LIES: u64 = 20_000;

/// How many lies were told; the tests switch them on. Units of a simulated network are threads, one of which runs at a time.
#[derive(Clone, Debug)]
pub(crate) struct Lies(Arc<AtomicU64>);

impl Lies {
    /// None yet.
    pub(crate) fn new() -> Lies {
        Lies(Arc::new(AtomicU64::new(u64::MAX)))
    }

    /// From now on.
    pub(crate) fn begin(&self) {
        self.0.store(0, Relaxed);
    }

    /// No more; whether they ended before.
    pub(crate) fn end(&self) -> bool {
        self.0.swap(u64::MAX, Relaxed) >= LIES
    }

    /// `fabric` answers every atomic by `lie`, which gets how many answers there were before, and the right word.
    pub(crate) fn tell(&self, fabric: &Fabric, lie: impl FnMut(u64, u64) -> u64 + 'static) {
        let lies = self.clone();
        tamper(fabric, Box::new(Lying { lies, lie }));
    }
}

struct Lying<F> {
    lies: Lies,
    lie: F,
}

impl<F: FnMut(u64, u64) -> u64> Tamper for Lying<F> {
    fn outgoing(
        &mut self,
        to: PeerId,
        mut frame: RawFrame,
        send: &mut dyn FnMut(PeerId, RawFrame),
    ) {
        let count = self.lies.0.load(Relaxed);
        let is_answer = frame.class == Class::Reply && frame.body.is_empty();
        // A status and a word.
        if is_answer && frame.inline.len() == 16 && count < LIES {
            self.lies.0.store(count + 1, Relaxed);
            let word = &mut frame.inline[8..];
            let right = u64::from_le_bytes(word.try_into().expect("it has 8 bytes"));
            word.copy_from_slice(&(self.lie)(count, right).to_le_bytes());
        }
        send(to, frame);
    }

    fn incoming(&mut self, _: PeerId, _: &RawFrame) -> bool {
        true
    }
}

/// What the checking mode asks behind the next compare-exchange of `fabric`, or before it gives back what that took, is lost.
pub(crate) struct Losing {
    /// 0: nothing; 1: what an element has seen; 2: whether it may be updated.
    pub(crate) what: Arc<AtomicU64>,
    pub(crate) has_exchanged: bool,
}

impl Tamper for Losing {
    fn outgoing(&mut self, to: PeerId, frame: RawFrame, send: &mut dyn FnMut(PeerId, RawFrame)) {
        let wanted: &[u8] = match self.what.load(Relaxed) {
            0 => return send(to, frame),
            1 => br#"{"Take":"#,
            _ => br#""kind":"Update""#,
        };
        let has = |bytes: &[u8]| bytes.windows(wanted.len()).any(|part| part == wanted);
        if self.has_exchanged && (has(&frame.inline) || has(&frame.body)) {
            self.what.store(0, Relaxed);
            self.has_exchanged = false;
            return;
        }
        self.has_exchanged |= is_exchange(&frame);
        send(to, frame);
    }

    fn incoming(&mut self, _: PeerId, _: &RawFrame) -> bool {
        true
    }
}

/// A compare-exchange of `fabric` leaves only before the next frame, when its caller has given up: the first one after `armed` is
/// set.
pub(crate) fn delay_an_exchange(fabric: &Fabric, armed: &Arc<AtomicU64>) {
    let (armed, late) = (armed.clone(), None);
    tamper(fabric, Box::new(Delaying { armed, late }));
}

struct Delaying {
    armed: Arc<AtomicU64>,
    late: Option<(PeerId, RawFrame)>,
}

/// What an atomic has in its frame: a place of three words, the operation, two operands.
const ATOMIC_BYTES: usize = 48;
const COMPARE_EXCHANGE: u8 = 8;

fn is_exchange(frame: &RawFrame) -> bool {
    let is_atomic = frame.body.is_empty() && frame.inline.len() == ATOMIC_BYTES;
    is_atomic && frame.inline[24] == COMPARE_EXCHANGE
}

impl Tamper for Delaying {
    fn outgoing(&mut self, to: PeerId, frame: RawFrame, send: &mut dyn FnMut(PeerId, RawFrame)) {
        if is_exchange(&frame) && self.armed.swap(0, Relaxed) == 1 {
            self.late = Some((to, frame));
            return;
        }
        if let Some((to, late)) = self.late.take() {
            send(to, late);
        }
        send(to, frame);
    }

    fn incoming(&mut self, _: PeerId, _: &RawFrame) -> bool {
        true
    }
}
