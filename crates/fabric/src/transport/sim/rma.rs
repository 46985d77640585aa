//! RMA of the simulated network.
//!
//! An operation reaches its target after a random time of its own: it may overtake other operations
//! and frames. With bypass, the network then carries it out; otherwise the target does, when it
//! polls. A put with bypass completes when the target has received it, but its bytes become visible
//! there some time later. Only a flush waits for that, as with a network adapter. The target's
//! processor carries out atomics, so bypass has none.

use super::network::{Event, Network, State, UnitEvent};
use crate::transport::{
    Completed, NotStarted, Push, Registration, RemoteKey, Rma, RmaAddress, RmaError, RmaVerb,
};
use samite_mem::SharedBytes;
use std::collections::BTreeMap;
use std::time::Duration;

/// Memory that peers may access, by owner and registration number.
type Ranges = BTreeMap<(u32, u64), SharedBytes>;

/// The state of all operations.
#[derive(Debug, Default)]
pub(super) struct Operations {
    started: u64,
    /// Operations that have not completed or are not visible yet, by initiator, target and number.
    open: BTreeMap<(u32, u32), BTreeMap<u64, Open>>,
    ranges: Ranges,
    registered: u64,
}

/// An operation in flight.
#[derive(Debug)]
struct Open {
    id: u64,
    /// `None` if it has completed but is not visible yet.
    verb: Option<RmaVerb>,
    result: Result<u64, RmaError>,
    /// Bytes still to be written: registration, offset and content.
    landing: Option<(u64, u64, Vec<u8>)>,
}

/// A step of an operation, which initiator, target and number identify.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) from: u32,
    pub(super) to: u32,
    number: u64,
    what: What,
}

impl Step {
    fn then(self, what: What) -> Event {
        Event::Rma(Step { what, ..self })
    }
}

#[derive(Clone, Copy, Debug)]
enum What {
    /// The operation arrives at its target.
    Arrive,
    /// Its completion arrives at its initiator.
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
        // The key is longer than the number, because the fabric must treat keys as opaque.
        let mut key = [0x5a; 40];
        key[..8].copy_from_slice(&number.to_le_bytes());
        let key = RemoteKey::of(&key).expect("a key of 40 bytes");
        (Registration(number), key)
    }

    /// Ends one registration of a unit, or all. Completed puts are written first.
    pub(super) fn deregister(&self, unit: u32, registration: Option<Registration>) {
        let Operations { open, ranges, .. } = &mut self.lock().operations;
        let is_it = |number: u64| registration.is_none_or(|it| it.0 == number);
        let of_unit = open.iter_mut().filter(|((_, to), _)| *to == unit);
        for open in of_unit.flat_map(|(_, open)| open.values_mut()) {
            let landing = open.landing.as_ref();
            if landing.is_some_and(|(range, ..)| is_it(*range)) {
                open.land(unit, ranges);
            }
        }
        ranges.retain(|(owner, number), _| *owner != unit || !is_it(*number));
    }

    pub(super) fn start_rma(
        &self,
        (from, to): (u32, u32),
        id: u64,
        verb: RmaVerb,
    ) -> Result<(), NotStarted> {
        let by_processor = self.scenario.rma == Rma::NeedsProgress;
        let is_atomic = matches!(verb, RmaVerb::Atomic(..));
        assert!(by_processor || !is_atomic, "`Caps::atomics` says no");
        let mut guard = self.lock();
        let state = &mut *guard;
        let operations = &mut state.operations;
        let open = operations.open.entry((from, to)).or_default();
        if open.len() >= self.scenario.in_flight_max {
            return Err(Box::new((Push::Full, verb)));
        }
        operations.started += 1;
        let step = Step {
            from,
            to,
            number: operations.started,
            what: What::Arrive,
        };
        // A flush carries no bytes and completes when everything before it has.
        let bytes = match &verb {
            RmaVerb::Put(_, buf) => Some(buf.len()),
            RmaVerb::Get(_, buf) => Some(buf.len()),
            RmaVerb::Atomic(..) => Some(0),
            RmaVerb::Flush => None,
        };
        let started = Open {
            id,
            verb: Some(verb),
            result: Ok(0),
            landing: None,
        };
        open.insert(step.number, started);
        match bytes {
            None => state.flushed(&step, &self.scenario.latency),
            Some(bytes) => {
                let wire = bytes * 1_000_000_000 / self.scenario.bandwidth.max(1);
                let at = state.flight(&self.scenario.latency) + Duration::from_nanos(wire);
                state.make(at, Event::Rma(step));
            }
        }
        Ok(())
    }

    /// Ends the operations of a unit at a peer whose loss it learns of, before that loss (T10).
    pub(super) fn lose_operations(&self, from: u32, to: u32) -> Vec<Completed> {
        let mut lost = Vec::new();
        if let Some(all) = self.lock().operations.open.get_mut(&(from, to)) {
            all.retain(|_, open| {
                if let Some(verb) = open.verb.take() {
                    let (id, result) = (open.id, Err(RmaError::Lost));
                    lost.push(Completed { id, verb, result });
                }
                // Bytes that the target has received are written nevertheless.
                open.landing.is_some()
            });
        }
        lost
    }

    /// Carries out an operation that needs the progress of its target.
    pub(super) fn carry_out(&self, step: Step) {
        self.lock().carry_out(step, &self.scenario, false);
    }
}

impl Open {
    fn land(&mut self, unit: u32, ranges: &Ranges) {
        if let Some((range, offset, bytes)) = self.landing.take()
            && let Some(range) = ranges.get(&(unit, range))
        {
            range.write(offset, &bytes);
        }
    }
}

impl State {
    /// Returns the time after a random latency.
    pub(super) fn flight(&mut self, latency: &std::ops::Range<Duration>) -> Duration {
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
        let ends = self.flight(&scenario.latency);
        let visible = self.flight(&scenario.latency);
        let Operations { open, ranges, .. } = &mut self.operations;
        let of_pair = open.get_mut(&(step.from, step.to));
        let Some(open) = of_pair.and_then(|open| open.get_mut(&step.number)) else {
            return; // Its target was lost meanwhile.
        };
        let find = |place, bytes| find(ranges, step.to, place, bytes);
        open.result = match &mut open.verb {
            Some(RmaVerb::Put(place, buf)) => find(place, buf.len()).map(|(number, range)| {
                let bytes = buf.body(0, buf.len()).to_vec();
                match bypasses {
                    false => range.write(place.offset, &bytes),
                    true => open.landing = Some((number, place.offset, bytes)),
                }
                0
            }),
            Some(RmaVerb::Get(place, buf)) => find(place, buf.len()).map(|(_, range)| {
                let (bytes, offset, len) = (range, place.offset, buf.len());
                buf.fill(0, &samite_mem::ring::Body::Shared { bytes, offset, len });
                0
            }),
            Some(RmaVerb::Atomic(place, (op, width), operands)) => {
                let found = find(place, width.bytes());
                found.and_then(|(_, range)| {
                    let old = op.try_apply(range, place.offset, *width, *operands);
                    old.ok_or(RmaError::Refused)
                })
            }
            Some(RmaVerb::Flush) | None => return,
        };
        if open.landing.is_some() {
            self.make(visible, step.then(What::Land));
        }
        self.make(ends, step.then(What::Complete));
    }

    /// Reports the completion to the initiator.
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

    /// Removes an operation that has completed and is visible, so that a flush can complete.
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

    /// Completes the flush of a pair if no operation before it is open.
    fn flushed(&mut self, step: &Step, latency: &std::ops::Range<Duration>) {
        let pair = (step.from, step.to);
        let first = self.operations.open.get(&pair);
        let first = first.and_then(|open| open.first_key_value());
        if let Some((number, open)) = first
            && matches!(open.verb, Some(RmaVerb::Flush))
        {
            let number = *number;
            let flush = Step { number, ..*step };
            let at = self.flight(latency);
            self.make(at, flush.then(What::Complete));
        }
    }
}

/// Finds the registration of the remote address of an operation on `bytes` bytes, and its number.
fn find<'a>(
    ranges: &'a Ranges,
    unit: u32,
    place: &RmaAddress,
    bytes: u64,
) -> Result<(u64, &'a SharedBytes), RmaError> {
    let number = place.key.as_bytes().first_chunk().copied();
    let number = u64::from_le_bytes(number.ok_or(RmaError::Refused)?);
    let range = ranges.get(&(unit, number)).ok_or(RmaError::Refused)?;
    let is_inside = range.contains(place.offset, bytes);
    assert!(is_inside, "an operation outside of its range");
    Ok((number, range))
}
