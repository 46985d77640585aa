//! Which committed steps a reader group gets, and what happens at its limits.
//!
//! | [`Policy`] | a new step at the limit | writer waits | the group gets |
//! |---|---|---|---|
//! | `Block` | (the writer did not begin it) | yes | every step |
//! | `Every(n)` | (the writer did not begin it) | yes | every step whose number is a multiple of n |
//! | `DropOldest` | drops the oldest one not taken | no | an increasing subset; always the newest in the end |
//! | `DropNewest` | is not queued | no | an increasing subset; all steps up to the first dropped one |
//! | `Latest` | replaces all queued steps | no | an increasing subset; always the newest in the end |
//! | `Spill` | is moved to disk | when the disk is full | every step |
//!
//! "At the limit" means that the steps in the queue, or their bytes, would exceed [`Limits`]. An
//! empty queue takes any step, so a step larger than the limit still gets through, alone. For the
//! policies that make the writer wait, the steps that the group has taken and not yet released
//! count too: together they are the memory that the group keeps in use.
//!
//! The ranks of a group take its steps in the same order, each at its own pace. Under the policies
//! that do not make the writer wait, the first rank waits for the last one if the steps between
//! them are at the limit. The step that it would take next may be dropped meanwhile.
//!
//! No group has more than `MOST_QUEUED` steps that some rank has yet to take, whatever its limit
//! and wherever they are stored. The cost of its queue at the coordinator is counted when the group
//! is opened.
//!
//! When *memory* is short (which other groups and streams share), the dropping policies drop more
//! than their own limit requires ([`Queue::yield_one`]), but never the newest committed step: the
//! next one may never be committed.

use super::{Limits, Policy, Step};
use std::collections::BTreeMap;

/// Maximum number of steps that a group may have in use or in its queue, and the cost of each at
/// the coordinator, in bytes.
const MOST_QUEUED: u64 = 1 << 16;
const QUEUED: u64 = 64;

/// The steps that a group has not taken yet.
#[derive(Clone, Debug)]
pub struct Queue {
    policy: Policy,
    limits: Limits,
    /// Steps before this one are not for the group.
    from: Step,
    waiting: BTreeMap<Step, u64>,
    bytes: u64,
}

impl Queue {
    /// Returns an empty queue of a group that begins at step `from`.
    pub fn new(policy: Policy, mut limits: Limits, from: Step) -> Self {
        limits.steps = limits.steps.min(MOST_QUEUED);
        Queue {
            policy,
            limits,
            from,
            waiting: BTreeMap::new(),
            bytes: 0,
        }
    }

    /// Returns its cost at the coordinator, in bytes, if it begins with `steps` steps.
    pub(super) fn cost(limits: Limits, steps: u64) -> u64 {
        QUEUED * limits.steps.min(MOST_QUEUED).max(steps)
    }

    /// What happens at the limit.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// The limits of the queue.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Queues a committed step, or drops steps by the policy. Returns the steps that the group will
    /// not get because of it.
    pub fn offer(&mut self, step: Step, bytes: u64) -> Vec<Step> {
        if !self.wants(step) {
            return vec![step];
        }
        if self.policy == Policy::DropNewest && !self.fits(0, 0, bytes) {
            return vec![step];
        }
        let mut dropped = Vec::new();
        let keep_one = |queue: &Self| match queue.policy {
            Policy::Latest => !queue.waiting.is_empty(),
            Policy::DropOldest => !queue.waiting.is_empty() && !queue.fits(0, 0, bytes),
            _ => false,
        };
        while keep_one(self) {
            dropped.extend(self.take());
        }
        self.waiting.insert(step, bytes);
        self.bytes = self.bytes.saturating_add(bytes);
        dropped
    }

    /// Returns true if the group wants that step, limits aside.
    pub fn wants(&self, step: Step) -> bool {
        let multiple = match self.policy {
            Policy::Every(n) => step.is_multiple_of(n),
            _ => true,
        };
        step >= self.from && multiple
    }

    /// Returns the oldest step in it, if any.
    pub fn first(&self) -> Option<Step> {
        self.waiting.keys().next().copied()
    }

    /// Removes and returns the oldest step.
    pub fn take(&mut self) -> Option<Step> {
        let (step, bytes) = self.waiting.pop_first()?;
        self.bytes = self.bytes.saturating_sub(bytes);
        Some(step)
    }

    /// Returns true if the step is in it.
    pub fn contains(&self, step: Step) -> bool {
        self.waiting.contains_key(&step)
    }

    /// Returns the steps in it, oldest first.
    pub fn all(&self) -> impl Iterator<Item = Step> + '_ {
        self.waiting.keys().copied()
    }

    /// Returns the number of steps in it.
    pub fn steps(&self) -> u64 {
        self.waiting.len() as u64
    }

    /// Returns the bytes of the steps in it.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns true if the writer may begin step `step`, of about `bytes` bytes, while the group
    /// has taken but not released `held_steps` steps of `held_bytes`. `disk` says whether steps can
    /// be spilled.
    pub fn admits(
        &self,
        step: Step,
        held_steps: u64,
        held_bytes: u64,
        bytes: u64,
        disk: bool,
    ) -> bool {
        match self.policy {
            Policy::DropOldest | Policy::DropNewest | Policy::Latest => true,
            Policy::Spill if disk => self.steps() + held_steps < MOST_QUEUED,
            Policy::Block | Policy::Every(_) | Policy::Spill => {
                !self.wants(step) || self.fits(held_steps, held_bytes, bytes)
            }
        }
    }

    /// Drops one step when memory is short, if the policy allows it. `newest` is the newest
    /// committed step, which stays.
    pub fn yield_one(&mut self, newest: Step) -> Option<Step> {
        let step = match self.policy {
            Policy::DropOldest | Policy::Latest => self.first(),
            Policy::DropNewest => {
                let mut steps = self.waiting.keys().rev();
                steps.find(|step| **step != newest).copied()
            }
            Policy::Block | Policy::Every(_) | Policy::Spill => None,
        };
        let step = step.filter(|&step| step != newest)?;
        let bytes = self.waiting.remove(&step)?;
        self.bytes = self.bytes.saturating_sub(bytes);
        Some(step)
    }

    /// Returns the first of the steps that exceed the limits of a queue, if any do.
    pub fn beyond(&self) -> Option<Step> {
        if self.steps() <= self.limits.steps && self.bytes <= self.limits.bytes {
            return None;
        }
        let (mut steps, mut bytes) = (0, 0u64);
        let mut waiting = self.waiting.iter();
        let first = waiting.find(|(_, more)| {
            steps += 1;
            bytes = bytes.saturating_add(**more);
            steps > 1 && (steps > self.limits.steps || bytes > self.limits.bytes)
        });
        first.map(|(step, _)| *step)
    }

    fn fits(&self, held_steps: u64, held_bytes: u64, bytes: u64) -> bool {
        let steps = self.steps() + held_steps;
        let bytes = self.bytes.saturating_add(held_bytes).saturating_add(bytes);
        steps == 0 || steps < self.limits.steps && bytes <= self.limits.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(policy: Policy, steps: u64, bytes: u64) -> Queue {
        Queue::new(policy, Limits { steps, bytes }, 0)
    }

    fn drain(mut queue: Queue) -> Vec<Step> {
        std::iter::from_fn(|| queue.take()).collect()
    }

    /// Whatever the limit, and wherever the steps are stored.
    #[test]
    fn no_group_is_further_behind_than_that() {
        for policy in [Policy::Block, Policy::Spill] {
            let queue = queue(policy, u64::MAX, u64::MAX);
            assert!(queue.admits(1, MOST_QUEUED - 1, 0, 0, true));
            assert!(!queue.admits(1, MOST_QUEUED, 0, 0, true));
        }
    }

    #[test]
    fn block_waits_at_either_limit_and_counts_what_is_held() {
        let mut block = queue(Policy::Block, 2, 100);
        assert!(block.admits(0, 0, 0, 1000, true), "an empty one takes any");
        assert_eq!(block.offer(0, 60), Vec::<u64>::new());
        assert!(block.admits(1, 0, 0, 40, true));
        assert!(!block.admits(1, 0, 0, 41, true), "bytes");
        assert!(!block.admits(1, 1, 0, 10, true), "one held, one queued");
        assert_eq!(block.take(), Some(0));
        assert!(block.admits(1, 1, 60, 40, true));
        assert!(!block.admits(1, 1, 61, 40, true));
        assert!(!block.admits(1, 2, 0, 0, true));
        assert_eq!(block.yield_one(9), None);
        assert_eq!(block.bytes(), 0);
    }

    #[test]
    fn every_nth_takes_multiples() {
        let mut every = queue(Policy::Every(3), 2, 100);
        for step in 0..6 {
            let dropped = every.offer(step, 10);
            assert_eq!(dropped.is_empty(), step % 3 == 0);
        }
        assert!(every.admits(7, 0, 0, 10, true), "it does not want 7");
        assert!(!every.admits(9, 0, 0, 10, true), "it wants 9, and is full");
        assert_eq!(drain(every), [0, 3]);
    }

    #[test]
    fn the_oldest_give_way() {
        let mut drop = queue(Policy::DropOldest, 2, 100);
        assert_eq!(drop.offer(0, 10), Vec::<u64>::new());
        assert_eq!(drop.offer(1, 10), Vec::<u64>::new());
        assert_eq!(drop.offer(2, 10), [0]);
        assert_eq!(drop.offer(3, 95), [1, 2], "bytes count too");
        assert_eq!(drop.offer(4, 1000), [3], "too large, but alone");
        assert!(drop.admits(5, 9, 900, 10, true));
        assert_eq!(drop.yield_one(4), None, "the newest committed one stays");
        assert_eq!(drop.yield_one(5), Some(4));
    }

    #[test]
    fn the_newest_give_way() {
        let mut drop = queue(Policy::DropNewest, 2, 100);
        assert_eq!(drop.offer(0, 10), Vec::<u64>::new());
        assert_eq!(drop.offer(1, 10), Vec::<u64>::new());
        assert_eq!(drop.offer(2, 10), [2]);
        assert!(drop.admits(3, 0, 0, 10, true));
        assert_eq!(drop.yield_one(2), Some(1));
        assert_eq!(drop.offer(3, 91), [3]);
        assert_eq!(drop.offer(4, 90), Vec::<u64>::new());
        let mut short = drop.clone();
        assert_eq!(drain(drop), [0, 4]);
        assert_eq!(short.yield_one(4), Some(0), "the newest stays, not all");
        assert_eq!(short.yield_one(4), None);
    }

    #[test]
    fn latest_has_one() {
        let mut latest = queue(Policy::Latest, 5, 100);
        assert_eq!(latest.offer(0, 10), Vec::<u64>::new());
        assert_eq!(latest.offer(1, 10), [0]);
        assert_eq!(latest.offer(2, 10), [1]);
        assert_eq!(latest.yield_one(2), None);
        assert_eq!(drain(latest), [2]);
    }

    #[test]
    fn spill_names_what_is_beyond() {
        let mut spill = queue(Policy::Spill, 2, 100);
        for step in 0..5 {
            assert!(spill.admits(step, 0, 0, 10, true));
            assert_eq!(spill.offer(step, 10), Vec::<u64>::new());
        }
        assert_eq!(spill.beyond(), Some(2));
        assert!(!spill.admits(5, 0, 0, 10, false), "the disk is full");
        assert_eq!(drain(spill), [0, 1, 2, 3, 4]);
        let mut large = queue(Policy::Spill, 10, 100);
        large.offer(0, 200);
        assert_eq!(large.beyond(), None, "one always stays");
        large.offer(1, 1);
        assert_eq!(large.beyond(), Some(1));
    }

    #[test]
    fn a_group_that_begins_later_does_not_want_earlier_steps() {
        let limits = Limits {
            steps: 1,
            bytes: 10,
        };
        let mut late = Queue::new(Policy::Block, limits, 5);
        assert_eq!(late.offer(4, 1), [4]);
        assert_eq!(late.offer(5, 1), Vec::<u64>::new());
        assert!(late.contains(5) && !late.contains(4));
    }
}
