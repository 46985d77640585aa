//! RMA of the simulated network.
//!
//! An operation reaches its target after a time of its own, at random: it may overtake others, and frames. With bypass
//! the network then does it; else the target, when it polls. A put with bypass completes when the target's memory has
//! taken it, and its bytes become visible there some time later: only a flush waits for that, as with a network
//! adapter. The atomics of such an adapter are atomic with each other, and not with those of processors.

use super::network::{Event, Network, State, UnitEvent};
use crate::transport::{
    Completed, NotStarted, Push, Registration, RemoteKey, Rma, RmaError, RmaVerb,
};
use samite_mem::SharedBytes;
use std::collections::BTreeMap;
use std::time::Duration;

/// The state of all operations.
#[derive(Debug, Default)]
pub(super) struct Operations {
    started: u64,
    /// What has not completed, or is not visible yet, by initiator, target and number.
    open: BTreeMap<(u32, u32), BTreeMap<u64, Open>>,
    /// What peers may reach, by owner and number.
    ranges: BTreeMap<(u32, u64), SharedBytes>,
    registered: u64,
    /// When the adapter of a unit has done its last atomic.
    adapters: BTreeMap<u32, Duration>,
}

/// An operation on its way.
#[derive(Debug)]
struct Open {
    id: u64,
    /// `None`: it has completed, and is not visible yet.
    verb: Option<RmaVerb>,
    result: Result<u64, RmaError>,
    /// What is still to be written, and where.
    landing: Option<(u64, u64, Vec<u8>)>,
}

/// What happens to an operation: which, by initiator, target and number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) from: u32,
    pub(super) to: u32,
    number: u64,
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    /// It is at its target.
    Arrive,
    /// Its end is at its initiator.
    Complete,
    /// Its bytes become visible.
    Land,
}

impl Network {
    pub(super) fn register(&self, unit: u32, bytes: &SharedBytes) -> (Registration, RemoteKey) {
        let operations = &mut self.lock().operations;
        operations.registered += 1;
        let number = operations.registered;
        operations.ranges.insert((unit, number), bytes.clone());
        // Longer than the number: the fabric is to take keys as they are.
        let mut key = [0x5a; 40];
        key[..8].copy_from_slice(&number.to_le_bytes());
        let key = RemoteKey::of(&key).expect("a key of 40 bytes");
        (Registration(number), key)
    }

    /// Ends one registration of a unit, or all; puts that have completed land first.
    pub(super) fn deregister(&self, unit: u32, registration: Option<Registration>) {
        let operations = &mut self.lock().operations;
        let is_it = |number: u64| registration.is_none_or(|it| it.0 == number);
        for ((_, to), open) in &mut operations.open {
            for open in open.values_mut().filter(|_| *to == unit) {
                if open
                    .landing
                    .as_ref()
                    .is_some_and(|(range, ..)| is_it(*range))
                {
                    open.land(unit, &operations.ranges);
                }
            }
        }
        let ranges = std::mem::take(&mut operations.ranges);
        let (_gone, kept): (BTreeMap<_, _>, BTreeMap<_, _>) = ranges
            .into_iter()
            .partition(|((owner, number), _)| *owner == unit && is_it(*number));
        operations.ranges = kept;
    }

    pub(super) fn start_rma(
        &self,
        (from, to): (u32, u32),
        id: u64,
        verb: RmaVerb,
    ) -> Result<(), NotStarted> {
        let mut state = self.lock();
        if to as usize >= state.units.len() || !state.units[from as usize].alive {
            return Err(Box::new((Push::Gone, verb)));
        }
        let open = state.operations.open.entry((from, to)).or_default();
        if open.len() >= self.scenario.in_flight_max {
            return Err(Box::new((Push::Full, verb)));
        }
        state.operations.started += 1;
        let number = state.operations.started;
        let is_flush = matches!(verb, RmaVerb::Flush);
        let bytes = match &verb {
            RmaVerb::Put(_, buf) => buf.len(),
            RmaVerb::Get(_, buf) => buf.len(),
            _ => 0,
        };
        let open = Open {
            id,
            verb: Some(verb),
            result: Ok(0),
            landing: None,
        };
        let all = state.operations.open.entry((from, to)).or_default();
        all.insert(number, open);
        let step = Step {
            from,
            to,
            number,
            what: What::Arrive,
        };
        match is_flush {
            true => state.flushed(&step, &self.scenario.latency),
            false => {
                let wire = bytes * 1_000_000_000 / self.scenario.bandwidth.max(1);
                let at = state.flight(&self.scenario.latency) + Duration::from_nanos(wire);
                state.make(at, Event::Rma(step));
            }
        }
        Ok(())
    }

    /// The target does an operation that needs its progress.
    pub(super) fn carry_out(&self, step: Step) {
        self.lock().carry_out(step, &self.scenario, false);
    }
}

impl Open {
    fn land(&mut self, unit: u32, ranges: &BTreeMap<(u32, u64), SharedBytes>) {
        if let Some((range, offset, bytes)) = self.landing.take()
            && let Some(range) = ranges.get(&(unit, range))
        {
            range.write(offset, &bytes);
        }
    }
}

impl State {
    /// A moment after a random latency.
    fn flight(&mut self, latency: &std::ops::Range<Duration>) -> Duration {
        let (low, high) = (latency.start.as_nanos(), latency.end.as_nanos());
        let (low, high) = (low as u64, high as u64);
        self.now + Duration::from_nanos(self.random.u64(low..high.max(low + 1)))
    }

    pub(super) fn happen_rma(&mut self, step: Step, scenario: &super::Scenario) {
        match step.what {
            What::Arrive if !self.units[step.to as usize].reachable() => {} // Its loss ends it.
            What::Arrive if scenario.rma == Rma::Bypasses => self.carry_out(step, scenario, true),
            What::Arrive => {
                let target = &mut self.units[step.to as usize];
                target.inbox.push_back(UnitEvent::Rma(step));
            }
            What::Complete => self.complete(step, scenario),
            What::Land => {
                let Operations { open, ranges, .. } = &mut self.operations;
                let of_pair = open.get_mut(&(step.from, step.to));
                if let Some(open) = of_pair.and_then(|open| open.get_mut(&step.number)) {
                    open.land(step.to, ranges);
                }
                self.close(step, scenario);
            }
        }
    }

    fn carry_out(&mut self, step: Step, scenario: &super::Scenario, bypasses: bool) {
        let pair = (step.from, step.to);
        let back = self.flight(&scenario.latency);
        let visible = self.flight(&scenario.latency);
        let now = self.now;
        let operations = &mut self.operations;
        let Some(open) = operations.open.get_mut(&pair) else {
            return;
        };
        let Some(open) = open.get_mut(&step.number) else {
            return; // Its target was lost meanwhile.
        };
        let (mut ends, mut lands) = (back, None);
        open.result =
            match &mut open.verb {
                Some(RmaVerb::Put(place, buf)) => operations
                    .ranges
                    .at(step.to, place, buf.len())
                    .map(|(number, range)| {
                        let bytes = buf.body(0, buf.len()).to_vec();
                        match bypasses {
                            false => range.write(place.offset, &bytes),
                            true => {
                                open.landing = Some((number, place.offset, bytes));
                                lands = Some(visible);
                            }
                        }
                        0
                    }),
                Some(RmaVerb::Get(place, buf)) => {
                    let found = operations.ranges.at(step.to, place, buf.len());
                    found.map(|(_, range)| {
                        let mut bytes = vec![0; buf.len() as usize];
                        range.read(place.offset, &mut bytes);
                        buf.fill(0, &samite_mem::ring::Body::Slice(&bytes));
                        0
                    })
                }
                Some(RmaVerb::Atomic(place, (op, width), operands)) => {
                    let found = operations.ranges.at(step.to, place, width.bytes());
                    found.and_then(|(number, range)| {
                        let refused = Err(RmaError::Refused);
                        if !bypasses {
                            let old = op.try_apply(range, place.offset, *width, *operands);
                            return old.map_or(refused, Ok);
                        }
                        // An adapter reads, computes and writes, one atomic after the other.
                        let busy = operations.adapters.entry(step.to).or_default();
                        if *busy > now {
                            return Err(RmaError::Lost); // Not done: it comes again below.
                        }
                        let bytes = width.bytes() as usize;
                        let mut word = vec![0; bytes];
                        range.read(place.offset, &mut word);
                        let copy = SharedBytes::adopt(vec![0u64]);
                        copy.write(0, &word);
                        let Some(old) = op.try_apply(&copy, 0, *width, *operands) else {
                            return refused;
                        };
                        copy.read(0, &mut word);
                        open.landing = Some((number, place.offset, word));
                        *busy = visible;
                        lands = Some(visible);
                        ends = ends.max(visible);
                        Ok(old)
                    })
                }
                Some(RmaVerb::Flush) | None => return,
            };
        if open.result == Err(RmaError::Lost) {
            let later = operations.adapters[&step.to];
            return self.make(later, Event::Rma(step));
        }
        let complete = Step {
            what: What::Complete,
            ..step
        };
        self.make(ends, Event::Rma(complete));
        if let Some(at) = lands {
            let land = Step {
                what: What::Land,
                ..step
            };
            self.make(at, Event::Rma(land));
        }
    }

    /// The initiator learns of the end.
    fn complete(&mut self, step: Step, scenario: &super::Scenario) {
        let of_pair = self.operations.open.get_mut(&(step.from, step.to));
        let Some(open) = of_pair.and_then(|open| open.get_mut(&step.number)) else {
            return; // It was lost.
        };
        if let Some(verb) = open.verb.take() {
            let (id, result) = (open.id, open.result);
            let completed = Completed { id, verb, result };
            let initiator = &mut self.units[step.from as usize];
            if initiator.alive {
                initiator.inbox.push_back(UnitEvent::Completed(completed));
            }
        }
        self.close(step, scenario);
    }

    /// What has completed and is visible keeps no flush waiting.
    fn close(&mut self, step: Step, scenario: &super::Scenario) {
        let Some(of_pair) = self.operations.open.get_mut(&(step.from, step.to)) else {
            return;
        };
        let open = of_pair.get(&step.number);
        if open.is_some_and(|open| open.verb.is_none() && open.landing.is_none()) {
            of_pair.remove(&step.number);
            self.flushed(&step, &scenario.latency);
        }
    }

    /// Ends the flush of a pair before which nothing is open.
    fn flushed(&mut self, step: &Step, latency: &std::ops::Range<Duration>) {
        let pair = (step.from, step.to);
        let first = self.operations.open.get(&pair);
        let first = first.and_then(|open| open.first_key_value());
        if let Some((number, open)) = first
            && matches!(open.verb, Some(RmaVerb::Flush))
        {
            let number = *number;
            let at = self.flight(latency);
            let complete = Step {
                number,
                what: What::Complete,
                ..*step
            };
            self.make(at, Event::Rma(complete));
        }
    }

    /// A unit hears that another one is lost: what it has under way there ends first (T10).
    pub(super) fn lose_operations(&mut self, from: u32, to: u32) {
        let Some(all) = self.operations.open.get_mut(&(from, to)) else {
            return;
        };
        let inbox = &mut self.units[from as usize].inbox;
        all.retain(|_, open| {
            if let Some(verb) = open.verb.take() {
                let (id, result) = (open.id, Err(RmaError::Lost));
                let completed = Completed { id, verb, result };
                inbox.push_back(UnitEvent::Completed(completed));
            }
            // What the target has taken lands all the same.
            open.landing.is_some()
        });
    }
}

/// Ranges by key.
trait Ranges {
    fn at(
        &self,
        unit: u32,
        place: &crate::transport::RemotePlace,
        bytes: u64,
    ) -> Result<(u64, &SharedBytes), RmaError>;
}

impl Ranges for BTreeMap<(u32, u64), SharedBytes> {
    fn at(
        &self,
        unit: u32,
        place: &crate::transport::RemotePlace,
        bytes: u64,
    ) -> Result<(u64, &SharedBytes), RmaError> {
        let number = place.key.as_bytes().first_chunk().copied();
        let number = u64::from_le_bytes(number.ok_or(RmaError::Refused)?);
        let range = self.get(&(unit, number));
        let range = range.filter(|range| range.contains(place.offset, bytes));
        Ok((number, range.ok_or(RmaError::Refused)?))
    }
}
