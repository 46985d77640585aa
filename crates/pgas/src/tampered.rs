//! For tests: an owner of words that returns wrong answers, and a unit whose operation is late.

use samite_fabric::testing::{RawFrame, Tamper, tamper};
use samite_fabric::transport::Class;
use samite_fabric::transport::sim::Scenario;
use samite_fabric::{Fabric, PeerId};
use samite_testkit::Outcome;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Runs this many units over messages in the checking mode.
pub(crate) fn simulate_checked(units: u32, body: impl Fn(&Fabric, &[PeerId]) -> Outcome + Sync) {
    for seed in 0..8 {
        let mut scenario = Scenario::new(seed, units);
        scenario.config.check = true;
        let ended = scenario.run(|fabric| body(fabric, &fabric.job()?));
        assert!(ended.iter().all(Result::is_ok), "seed {seed}: {ended:?}");
    }
}

/// The maximum number of lies. A unit that asks for more ignores its deadline.
pub(crate) const LIES: u64 = 20_000;

/// Counts the lies told, which the tests switch on. Units of a simulated network are threads that
/// run one at a time.
#[derive(Clone, Debug)]
pub(crate) struct Lies(Arc<AtomicU64>);

impl Lies {
    /// Tells no lies yet.
    pub(crate) fn new() -> Lies {
        Lies(Arc::new(AtomicU64::new(u64::MAX)))
    }

    /// Starts telling lies.
    pub(crate) fn begin(&self) {
        self.0.store(0, Relaxed);
    }

    /// Stops telling lies. Returns true if they had already ended.
    pub(crate) fn end(&self) -> bool {
        self.0.swap(u64::MAX, Relaxed) >= LIES
    }

    /// Makes `fabric` answer every atomic with `lie`, which gets the number of earlier answers and
    /// the correct word.
    pub(crate) fn tell(&self, fabric: &Fabric, lie: impl FnMut(u64, u64) -> u64 + Send + 'static) {
        let lies = self.clone();
        tamper(fabric, Box::new(Lying { lies, lie }));
    }
}

struct Lying<F> {
    lies: Lies,
    lie: F,
}

impl<F: FnMut(u64, u64) -> u64 + Send> Tamper for Lying<F> {
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
}

/// Loses the query of the checking mode that follows the next compare-exchange of `fabric`, or the
/// one before the lock taken by it is released.
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
        self.has_exchanged |= is_atomic(&frame, COMPARE_EXCHANGE);
        send(to, frame);
    }
}

/// Delays the first compare-exchange of `fabric` after `armed` is set: it leaves only before the
/// next frame, when its caller has given up.
pub(crate) fn delay_an_exchange(fabric: &Fabric, armed: &Arc<AtomicU64>) {
    delay(fabric, armed, COMPARE_EXCHANGE);
}

/// As [`delay_an_exchange`], for an addition.
pub(crate) fn delay_an_addition(fabric: &Fabric, armed: &Arc<AtomicU64>) {
    delay(fabric, armed, ADD);
}

fn delay(fabric: &Fabric, armed: &Arc<AtomicU64>, what: u8) {
    let (armed, late) = (armed.clone(), None);
    tamper(fabric, Box::new(Delaying { what, armed, late }));
}

struct Delaying {
    what: u8,
    armed: Arc<AtomicU64>,
    late: Option<(PeerId, RawFrame)>,
}

/// The bytes of an atomic in its frame: an address of three words, the operation, two operands.
const ATOMIC_BYTES: usize = 48;
const ADD: u8 = 1;
const COMPARE_EXCHANGE: u8 = 8;

fn is_atomic(frame: &RawFrame, op: u8) -> bool {
    let is_atomic = frame.body.is_empty() && frame.inline.len() == ATOMIC_BYTES;
    is_atomic && frame.inline[24] == op
}

impl Tamper for Delaying {
    fn outgoing(&mut self, to: PeerId, frame: RawFrame, send: &mut dyn FnMut(PeerId, RawFrame)) {
        if is_atomic(&frame, self.what) && self.armed.swap(0, Relaxed) == 1 {
            self.late = Some((to, frame));
            return;
        }
        if let Some((to, late)) = self.late.take() {
            send(to, late);
        }
        send(to, frame);
    }
}

/// The states of the puts of a unit: see [`starve`].
pub(crate) mod starving {
    /// Nothing yet.
    pub(crate) const IDLE: u64 = 0;
    /// They are held back, and so is their credit.
    pub(crate) const KEEPS: u64 = 1;
    /// One with a long body is sent, and is not answered.
    pub(crate) const SENDS_ONE: u64 = 2;
    /// The answer is lost when it comes.
    pub(crate) const IS_DEAF: u64 = 3;
    /// The unit has no credit left.
    pub(crate) const STARVES: u64 = 4;
}

/// Puts that take this much credit leave credit for one frame.
pub(crate) const ALMOST_ALL: u64 = 255;

/// Leaves `fabric` no credit for the second frame of a put. Frames that were held back are sent
/// with the first frame to another peer, once it [starves](starving::STARVES).
pub(crate) fn starve(fabric: &Fabric, state: &Arc<AtomicU64>) {
    let (state, kept) = (state.clone(), Vec::new());
    tamper(fabric, Box::new(Starving { state, kept }));
}

struct Starving {
    state: Arc<AtomicU64>,
    kept: Vec<(PeerId, RawFrame)>,
}

/// The kind of a request frame.
pub(crate) const ACTIVE: u8 = 8;
pub(crate) const PUT: u8 = 11;
pub(crate) const GET: u8 = 12;
const ANSWER: u8 = 15;
const LONG: usize = 1000;

impl Tamper for Starving {
    fn outgoing(&mut self, to: PeerId, frame: RawFrame, send: &mut dyn FnMut(PeerId, RawFrame)) {
        match self.state.load(Relaxed) {
            starving::KEEPS if frame.kind == PUT => return self.kept.push((to, frame)),
            starving::SENDS_ONE if frame.kind == PUT && frame.body.len() >= LONG => {
                self.state.store(starving::IS_DEAF, Relaxed);
            }
            starving::STARVES if self.kept.first().is_some_and(|(whom, _)| *whom != to) => {
                self.kept.drain(..).for_each(|(to, frame)| send(to, frame));
            }
            _ => {}
        }
        send(to, frame);
    }

    fn incoming(&mut self, _: PeerId, frame: &RawFrame) -> bool {
        let is_lost = frame.kind == ANSWER && self.state.load(Relaxed) == starving::IS_DEAF;
        if is_lost {
            self.state.store(starving::STARVES, Relaxed);
        }
        !is_lost
    }
}

/// Loses the frames of `fabric` that are of this kind.
pub(crate) fn lose(fabric: &Fabric, kind: &Arc<AtomicU64>) {
    let kind = kind.clone();
    tamper(fabric, Box::new(LosingAll { kind }));
}

struct LosingAll {
    kind: Arc<AtomicU64>,
}

impl Tamper for LosingAll {
    fn outgoing(&mut self, to: PeerId, frame: RawFrame, send: &mut dyn FnMut(PeerId, RawFrame)) {
        if u64::from(frame.kind) != self.kind.load(Relaxed) {
            send(to, frame);
        }
    }
}
