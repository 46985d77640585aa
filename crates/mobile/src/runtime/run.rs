//! Runs calls, and carries out what they asked for.

use super::code::Source;
use super::{Arrived, Runtime, Work, locked, map, name};
use crate::capsule::Capsule;
use crate::error::{Cause, Failure};
use crate::frame::{self, Head};
use crate::mobile::FAILURES_KEPT;
use rustix::time::{ClockId, clock_gettime};
use samite_engines::{Context, Effect, Limits, PAYLOAD_MAX};
use samite_fabric::Fabric;
use samite_fabric::rpc::Life;
use std::time::{Duration, Instant};

/// Replies of this length fit into any frame.
const INLINE: usize = 200;

/// Code of which the calls of one source ran out of time this often is not run any more for it.
const TIMEOUTS_MAX: u32 = 8;

/// Returns the time of a clock that costs 5 ns and ticks every few milliseconds: what a call uses
/// of its time is charged by ticks that it happens to see.
#[inline]
pub(crate) fn coarse() -> Duration {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

impl Work {
    /// Runs a call, or parks it until its code is there.
    pub(super) fn call(&mut self, runtime: &Runtime, fabric: &Fabric, arrived: Arrived) {
        let Some((head, payload)) = Head::decode(&arrived.bytes) else {
            return tracing::warn!(from = %arrived.from.peer, "a call that is cut off");
        };
        let Some(code) = self.codes.get(arrived.word) else {
            return self.park(runtime, fabric, head, arrived);
        };
        if arrived.kind == frame::PREFETCH {
            return self.prefetched(runtime, fabric, &head, arrived);
        }
        let run = head.limits.run.min(self.policy.run_max);
        let most = run.min(head.limits.time);
        let origin = self.numbers.get(&head.origin).copied();
        let source = Source {
            from: arrived.from,
            origin: match origin.is_some() || head.origin == arrived.from {
                true => head.origin,
                false => Source::OTHERS,
            },
        };
        if code.has_timeouts() && code.timeouts_of(source, most) >= TIMEOUTS_MAX {
            let run_max = self.policy.run_max;
            let text = format!(
                "the last {TIMEOUTS_MAX} such calls of this code ran out of time here: give the call more time (`Limits::run` and `time`; this unit allows {run_max:?}), or evict the code here (`Mobile::evict`)"
            );
            let failure = Failure::new(Cause::Refused, text);
            return self.fail(runtime, fabric, &head, arrived.from, failure);
        }
        let Some(ready) = code.ready() else {
            return self.park(runtime, fabric, head, arrived);
        };
        // Calls whose grants are narrowed get an instance that maps no others.
        let bits = self.bits & head.limits.grants;
        let mut context = self.context.take().unwrap_or_else(|| {
            let units = self.units.len() as u32;
            Box::new(Context::new(self.unit, units, self.grants.clone()))
        });
        if !context.grants().is(&self.grants) {
            context.renew(self.units.len() as u32, self.grants.clone());
        }
        let limits = Limits { run, ..head.limits };
        context.begin(limits, origin.unwrap_or(u32::MAX), PAYLOAD_MAX);
        let (context, ended) = match ready.instance(&self.grants, self.bits, bits) {
            Ok(instance) if head.has_input => {
                map::map(fabric, &mut **instance, head.entry, context, payload)
            }
            Ok(instance) => instance.call(head.entry, context, payload),
            Err(trap) => (context, Err(trap)),
        };
        let has_new_instance = ready.has_new_instance();
        let now = coarse();
        let spent = now.saturating_sub(self.clock);
        self.clock = now;
        self.counters.calls += 1;
        match ended {
            Ok(()) => {
                if code.has_timeouts() {
                    self.codes.in_time(arrived.word, source);
                }
                self.carry_out(runtime, fabric, &head, &arrived, &context, spent);
            }
            Err(trap) => {
                let cause = Cause::from(&trap);
                self.counters.traps += 1;
                // Without its input, the kernel has not run.
                if cause != Cause::Input {
                    ready.trapped();
                }
                // Calls with little time, or much input, do not have the code refused.
                let enough = Limits::default().run.min(self.policy.run_max);
                let counts = cause == Cause::Time && !head.has_input && most >= enough;
                if counts && !self.gone.contains_key(&arrived.from) {
                    self.codes.timed_out(arrived.word, source, most);
                }
                let failure = Failure::new(cause, trap.to_string());
                self.fail(runtime, fabric, &head, arrived.from, failure);
            }
        }
        self.context = Some(context);
        if has_new_instance {
            self.codes.bound_instances(arrived.word);
        }
    }

    /// Sends what a call asked for, now that it has returned.
    fn carry_out(
        &mut self,
        runtime: &Runtime,
        fabric: &Fabric,
        head: &Head,
        arrived: &Arrived,
        context: &Context,
        spent: Duration,
    ) {
        let (sent, definitions) = match self.prepare(runtime, fabric, arrived, context) {
            Ok(prepared) => prepared,
            Err(failure) => return self.fail(runtime, fabric, head, arrived.from, failure),
        };
        // What travels on has less of everything. Each call that this one makes costs a hop, and
        // they share the rest: a call with n hops and all that come of it are at most n + 1.
        let sends = u16::try_from(sent).unwrap_or(u16::MAX);
        let hops = head.limits.hops.saturating_sub(sends);
        let left = Limits {
            time: head.limits.time.saturating_sub(spent),
            hops: hops / sends.max(1),
            ..head.limits
        };
        if sent > 0 && left.time.is_zero() {
            let failure = Failure::new(Cause::Time, "the call used up its time on its way");
            return self.fail(runtime, fabric, head, arrived.from, failure);
        }
        for effect in context.effects() {
            match effect {
                Effect::Forward {
                    unit,
                    entry,
                    payload,
                } => {
                    let next = Head {
                        entry: *entry,
                        limits: left,
                        ..*head
                    };
                    self.trail
                        .moved(head, next.limits.hops, arrived.from, self.clock);
                    self.counters.forwards += 1;
                    let to = self.units[*unit as usize];
                    let bytes = next.encode(frame::CALL);
                    self.post(
                        runtime,
                        fabric,
                        to,
                        arrived.word,
                        &bytes,
                        context.bytes(payload),
                    );
                }
                Effect::Spawn {
                    unit,
                    entry,
                    code,
                    payload,
                } => {
                    let id = match code {
                        Some(at) => definitions[*at],
                        None => arrived.word,
                    };
                    let child = Head {
                        entry: *entry,
                        limits: left,
                        origin: head.origin,
                        one_way: true,
                        slot: 0,
                        has_input: false,
                    };
                    self.counters.spawns += 1;
                    let to = self.units[*unit as usize];
                    let bytes = child.encode(frame::CALL);
                    self.post(runtime, fabric, to, id, &bytes, context.bytes(payload));
                }
                Effect::Define { .. } => {}
            }
        }
        if !context.is_forwarded() && !head.one_way {
            let reply = context.replied().unwrap_or_default();
            let most = || match head.origin == self.me {
                true => PAYLOAD_MAX,
                false => fabric.upcall_max(head.origin.peer),
            };
            if reply.len() > INLINE && reply.len() as u64 > most() {
                let most = most();
                let text = format!("a reply of {} bytes is longer than {most}", reply.len());
                let failure = Failure::new(Cause::Forbidden, text);
                return self.fail(runtime, fabric, head, arrived.from, failure);
            }
            let bytes = reply_head(head.slot);
            self.post(runtime, fabric, head.origin, 0, &bytes, reply);
        }
    }

    /// Registers what a call has defined, before anything is sent. Returns how many calls it makes,
    /// and the ids of its definitions.
    fn prepare(
        &mut self,
        runtime: &Runtime,
        fabric: &Fabric,
        arrived: &Arrived,
        context: &Context,
    ) -> Result<(usize, Vec<u64>), Failure> {
        let (mut sent, mut definitions) = (0, Vec::new());
        let caller = match arrived.from == self.me {
            false => Some(arrived.from),
            true => self.codes.get(arrived.word).and_then(|code| code.caller),
        };
        let begin = Instant::now();
        for effect in context.effects() {
            let Effect::Define { code } = effect else {
                sent += 1;
                continue;
            };
            // X2: reading what a call has defined is a part of its work.
            if begin.elapsed() > context.limits().run {
                let text = "its definitions took more time than it had";
                return Err(Failure::new(Cause::Time, text));
            }
            let capsule = capsule_of(context.bytes(code));
            let capsule = capsule.map_err(|why| Failure::new(Cause::Refused, why))?;
            definitions.push(capsule.hash().id());
            if !self.register(runtime, fabric, capsule, false) {
                let text = "other code has the same first 8 bytes of its hash";
                return Err(Failure::new(Cause::Refused, text));
            }
            let id = definitions[definitions.len() - 1];
            let entry = self.codes.entry(id);
            entry.caller = entry.caller.or(caller);
            if !self.codes.evict(id, 0) && !self.codes.is_pinned(id) && self.codes.forget(id) {
                let text = "too much code is on its way, or being compiled, at this unit: call again later";
                return Err(Failure::new(Cause::Busy, text));
            }
        }
        Ok((sent, definitions))
    }

    /// Ends a call that failed here: the failure goes back along the way of the call, and collects
    /// the units on it, at most [`frame::PATH_MAX`].
    pub(super) fn fail(
        &mut self,
        runtime: &Runtime,
        fabric: &Fabric,
        head: &Head,
        from: Life,
        mut failure: Failure,
    ) {
        failure.through(self.unit);
        if head.one_way {
            return self.fail_unwaited(runtime, fabric, head, from, failure);
        }
        self.fail_back(runtime, fabric, head, from, failure);
    }

    /// Tells the origin that a call has failed for which nobody waits. Its way is not remembered
    /// beyond the unit that has started it.
    #[cold]
    fn fail_unwaited(
        &mut self,
        runtime: &Runtime,
        fabric: &Fabric,
        head: &Head,
        from: Life,
        mut failure: Failure,
    ) {
        if from != head.origin && from != self.me {
            let unit = self.numbers.get(&from).copied();
            unit.into_iter().for_each(|unit| failure.through(unit));
        }
        failure.is_part = from != head.origin;
        // What somebody waits for goes first.
        if head.origin == self.me || self.has_much_room(head.origin) {
            self.fail_to_origin(runtime, fabric, head, &failure);
        }
    }

    /// Keeps how a call failed for which nobody waits.
    #[cold]
    fn keep_unwaited(&mut self, fabric: &Fabric, mut failure: Failure) {
        self.counters.unwaited_failures += 1;
        self.set_names(fabric, &mut failure);
        if self.unwaited.len() >= FAILURES_KEPT {
            self.unwaited.pop_front();
        }
        self.unwaited.push_back(failure);
    }

    /// Sends a failure to the unit from which the call came here, or to its origin.
    fn fail_back(
        &mut self,
        runtime: &Runtime,
        fabric: &Fabric,
        head: &Head,
        from: Life,
        mut failure: Failure,
    ) {
        if from == self.me {
            return match self.trail.came_from(head) {
                // This unit had called itself.
                Some(_) => self.goes_back(runtime, fabric, *head, failure),
                None => self.fail_to_origin(runtime, fabric, head, &failure),
            };
        }
        let is_full = failure.path.len() >= frame::PATH_MAX;
        let is_lost = fabric.lost_life(from.peer, from.incarnation).is_some();
        if is_full || is_lost {
            failure.is_part |= from != head.origin;
            return self.fail_to_origin(runtime, fabric, head, &failure);
        }
        let (head, bytes) = (head.encode(frame::FAIL), failure.encode());
        self.post(runtime, fabric, from, 0, &head, &bytes);
    }

    /// A call that had left this unit has failed: the failure goes on along the way of the call.
    pub(super) fn goes_back(
        &mut self,
        runtime: &Runtime,
        fabric: &Fabric,
        mut head: Head,
        mut failure: Failure,
    ) {
        let came_from = self.trail.came_from(&head);
        failure.through(self.unit);
        match came_from {
            Some((from, hops)) if failure.path.len() < frame::PATH_MAX => {
                head.limits.hops = hops;
                self.fail_back(runtime, fabric, &head, from, failure);
            }
            came_from => {
                // Without a trace of it here, the way began here, or is not known any more.
                failure.is_part |= came_from.is_some() || head.origin != self.me;
                self.fail_to_origin(runtime, fabric, &head, &failure);
            }
        }
    }

    /// Sends a failure straight to the origin of its call.
    pub(super) fn fail_to_origin(
        &mut self,
        runtime: &Runtime,
        fabric: &Fabric,
        head: &Head,
        failure: &Failure,
    ) {
        if head.origin == self.me {
            if head.one_way {
                return self.keep_unwaited(fabric, failure.clone());
            }
            // A late failure of an earlier call with that name, which moved.
            let is_late = failure.cause == Cause::Lost
                && failure.path.len() > 2
                && !locked(&runtime.calls).moves(head.slot);
            if !is_late {
                self.end(runtime, fabric, head.slot, failure.clone());
            }
            return;
        }
        let (to, head) = (head.origin, head.encode(frame::FAIL));
        self.post(runtime, fabric, to, 0, &head, &failure.encode());
    }

    /// A failure has arrived, on its way back to the origin of its call.
    pub(super) fn failed(&mut self, runtime: &Runtime, fabric: &Fabric, arrived: &Arrived) {
        let Some((head, rest)) = Head::decode(&arrived.bytes) else {
            return;
        };
        match Failure::decode(rest) {
            Some(mut failure) if head.one_way => {
                if !failure.is_part {
                    failure.through(self.unit);
                }
                self.keep_unwaited(fabric, failure);
            }
            Some(failure) => self.goes_back(runtime, fabric, head, failure),
            None => tracing::warn!(from = %arrived.from.peer, "a failure that is cut off"),
        }
    }

    /// Ends a call of this unit.
    pub(super) fn end(
        &mut self,
        runtime: &Runtime,
        fabric: &Fabric,
        slot: u32,
        mut failure: Failure,
    ) {
        self.set_names(fabric, &mut failure);
        self.has_ended_here = true;
        locked(&runtime.calls).answer(slot, self.me, Err(failure));
    }

    fn set_names(&self, fabric: &Fabric, failure: &mut Failure) {
        let names = failure.path.iter().map(|unit| {
            let life = self.units.get(*unit as usize);
            life.map_or_else(|| format!("unit {unit}"), |life| name(fabric, *life))
        });
        failure.names = names.collect();
    }
}

/// The head of a reply.
#[inline]
pub(super) fn reply_head(slot: u32) -> [u8; 8] {
    let mut head = [frame::REPLY, 0, 0, 0, 0, 0, 0, 0];
    head[4..].copy_from_slice(&slot.to_le_bytes());
    head
}

/// Makes a capsule of a module that a kernel has made.
#[cfg(feature = "wasm")]
fn capsule_of(code: &[u8]) -> Result<Capsule, String> {
    Capsule::from_wasm(code).map_err(|error| error.to_string())
}

#[cfg(not(feature = "wasm"))]
fn capsule_of(_: &[u8]) -> Result<Capsule, String> {
    Err("this build has no engine for WebAssembly".into())
}
