//! Code that is sent before it is called, down a tree of units.

use super::code::State;
use super::run::{coarse, reply_head};
use super::{Arrived, Runtime, Work};
use crate::error::{Cause, Failure};
use crate::frame::{self, Head};
use samite_engines::Limits;
use samite_fabric::Fabric;

impl Work {
    /// A prefetch of code that is known here: waits until it is compiled and has an instance, and
    /// passes it on down the tree.
    pub(super) fn prefetched(
        &mut self,
        runtime: &Runtime,
        fabric: &Fabric,
        head: &Head,
        arrived: Arrived,
    ) {
        let id = arrived.word;
        // The instance is made now, too: the first call finds it. If that fails, the call says why.
        if let Some(ready) = self.codes.entry(id).ready() {
            if let Ok(instance) = ready.instance(&self.grants, self.bits, self.bits) {
                instance.warm_up();
            }
            if ready.has_new_instance() {
                self.codes.bound_instances(id);
                self.clock = coarse(); // The next call does not pay for it.
            }
        }
        match self.codes.entry(id).state() {
            State::Ready(_) => {
                let reply = reply_head(head.slot);
                self.post(runtime, fabric, head.origin, 0, &reply, &[]);
            }
            State::Rejected(why) => {
                let failure = Failure::new(Cause::Refused, why.clone());
                let me = self.me;
                // It has the bytes all the same, and those below it may accept them.
                self.fail(runtime, fabric, head, me, failure);
            }
            // The unit that passes it on has the code.
            _ => return self.park(runtime, fabric, *head, arrived),
        }
        let units = &arrived.bytes[Head::BYTES..];
        self.pass_on(runtime, fabric, head, id, units);
    }

    /// Sends a prefetch to two units, each with half of the others.
    pub(crate) fn pass_on(
        &mut self,
        runtime: &Runtime,
        fabric: &Fabric,
        head: &Head,
        id: u64,
        units: &[u8],
    ) {
        let count = units.len() / 4;
        let (left, right) = units[..count * 4].split_at(count.div_ceil(2) * 4);
        for half in [left, right] {
            let Some(unit) = frame::word(half, 0) else {
                continue;
            };
            if let Some(to) = self.units.get(unit as usize).copied() {
                let bytes = head.encode(frame::PREFETCH);
                // Without hops, as failures of it do not go back along its way.
                let limits = Limits {
                    hops: 0,
                    ..head.limits
                };
                let moved = Head { limits, ..*head };
                self.trail.moved(&moved, 0, self.me, self.clock);
                self.post(runtime, fabric, to, id, &bytes, &half[4..]);
            }
        }
    }
}
