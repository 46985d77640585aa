//! Which processes are units of this job, and what ends when one of them is lost.

use super::{Runtime, Work, locked, name};
use crate::error::{Cause, Failure};
use crate::frame::{self, Head};
use crate::runtime::Arrived;
use samite_fabric::Fabric;
use samite_fabric::rpc::Life;

impl Work {
    pub(super) fn number(&mut self) {
        let units = self.units.iter().enumerate();
        self.numbers = units.map(|(unit, life)| (life.peer, unit as u32)).collect();
        self.members.add(&self.units);
    }

    /// Follows membership: units that were lost, and those that have come back.
    pub(super) fn follow(&mut self, runtime: &Runtime, fabric: &Fabric) {
        let changes = fabric.changes();
        if self.changes == changes {
            return;
        }
        self.changes = changes;
        let job = &fabric.identity().job;
        let before = self.units.clone();
        for info in fabric.peers() {
            let unit = info.identity.unit as usize;
            if &info.identity.job == job
                && let Some(life) = self.units.get_mut(unit)
            {
                (life.peer, life.incarnation) = (info.peer, info.incarnation);
            }
        }
        self.number();
        locked(&runtime.lives).clone_from(&self.units);
        locked(&runtime.calls).members.add(&self.units);
        if let Some(context) = &mut self.context {
            context.renew(self.units.len() as u32, self.grants.clone());
        }
        // The first of those whose loss was not seen before.
        let newly = (before.iter().enumerate()).filter(|(_, life)| fabric_lost(fabric, **life));
        let newly: Vec<(usize, Life)> = (newly.map(|(unit, life)| (unit, *life)))
            .filter(|(_, life)| self.gone.insert(*life))
            .collect();
        // X5: what uses the fabric is done without the lock of the calls.
        let waiting = locked(&runtime.calls).waiting();
        for (slot, to, moves) in waiting {
            let unit = || before.iter().position(|life| *life == to);
            let (unit, life, is_target) = match (fabric_lost(fabric, to), newly.first()) {
                (true, _) => (unit(), to, true),
                (false, Some((unit, life))) if moves => (Some(*unit), *life, false),
                _ => continue,
            };
            let may_be = if moves { "may have been" } else { "was" };
            let text = format!(
                "{} was lost, and the call {may_be} there",
                name(fabric, life)
            );
            let mut failure = Failure::new(Cause::Lost, text);
            failure.path.extend(unit.map(|unit| unit as u32));
            match is_target {
                true => failure.through(self.unit),
                false => failure.is_part = true,
            }
            self.end(runtime, fabric, slot, failure);
        }
        self.fail_moved(runtime, fabric, &newly);
        self.fetch_again(runtime, fabric);
    }

    /// Fails calls that went from here to units that were lost. Their origin may have seen the loss
    /// before it sent them, and then it does not end them; an answer to a call that has ended is
    /// dropped.
    fn fail_moved(&mut self, runtime: &Runtime, fabric: &Fabric, lost: &[(usize, Life)]) {
        for (unit, life) in lost {
            let name = name(fabric, *life);
            for head in self.trail.sent_to(*life) {
                let text = format!("{name} was lost, and the call may have been there");
                let mut failure = Failure::new(Cause::Lost, text);
                failure.path.push(*unit as u32);
                failure.is_part = true;
                self.fail_to_origin(runtime, fabric, &head, &failure);
            }
        }
    }

    /// Returns whether a process is a unit of this job, after another look at who has come.
    #[cold]
    pub(super) fn admits(&mut self, runtime: &Runtime, fabric: &Fabric, life: Life) -> bool {
        self.follow(runtime, fabric);
        self.members.has(life)
    }

    /// Takes a reply of a unit of which this one had not heard when it arrived.
    #[cold]
    pub(super) fn replied(&mut self, runtime: &Runtime, arrived: &Arrived) {
        if let Some(slot) = frame::word(&arrived.bytes, 4) {
            let reply = arrived.bytes.get(8..).unwrap_or_default().to_vec();
            locked(&runtime.calls).answer(slot, Ok(reply));
            self.has_ended_here = true;
        }
    }

    /// Refuses a frame of a process of another job. Only that process is told.
    #[cold]
    pub(super) fn refuse_stranger(&self, fabric: &Fabric, arrived: &Arrived) {
        let (from, kind) = (arrived.from, arrived.kind);
        tracing::debug!(from = %from.peer, kind, "a frame of a process of another job");
        let is_call = matches!(kind, frame::CALL | frame::PREFETCH);
        match Head::decode(&arrived.bytes) {
            Some((head, _)) if is_call && !head.one_way => {
                let job = &fabric.identity().job;
                let text = format!("only units of the job {job} have code run there");
                let mut failure = Failure::new(Cause::Refused, text);
                failure.through(self.unit);
                // If there is no room for it, it is dropped: nothing is kept for strangers.
                let (head, bytes) = (head.encode(frame::FAIL), failure.encode());
                let _ = fabric.post_upcall(from, 0, &head, &bytes);
            }
            _ => {}
        }
    }
}

pub(super) fn fabric_lost(fabric: &Fabric, life: Life) -> bool {
    fabric.lost_life(life.peer, life.incarnation).is_some()
}
