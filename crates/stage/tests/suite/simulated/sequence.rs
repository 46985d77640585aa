//! What a group has got, and what it should have.

use crate::simulated::world::World;
use samite_stage::protocol::{Expected, Policy, Start, Step, Unread};
use std::collections::BTreeSet;

/// The steps that one life of a reader rank got, in order.
#[derive(Debug, Default)]
pub(crate) struct Life {
    pub(crate) steps: Vec<Step>,
    /// It was told the end, when so many steps were committed.
    pub(crate) ended: Option<Step>,
}

/// One group, from its opening until it was forgotten.
#[derive(Debug, Default)]
pub(crate) struct Log {
    /// Which program it is.
    pub(crate) program: usize,
    pub(crate) lives: Vec<Life>,
    /// It is the first group of its stream.
    pub(crate) first: bool,
}

impl Log {
    /// A rank comes, or comes back.
    pub(crate) fn open(&mut self) -> usize {
        self.lives.push(Life::default());
        self.lives.len() - 1
    }
}

/// All groups got what their policies say.
pub(crate) fn check(world: &World) {
    for (key, log) in &world.logs {
        let reader = &world.plan.programs[log.program].reader;
        let all: BTreeSet<Step> = log
            .lives
            .iter()
            .flat_map(|life| &life.steps)
            .copied()
            .collect();
        let all: Vec<Step> = all.into_iter().collect();
        for life in &log.lives {
            one_sequence(&life.steps, &all);
            let precious = world.plan.config.precious_first && reader.start == Start::Earliest;
            // A late group gets the precious first step, and then what is still there.
            let ahead = usize::from(precious && life.steps.first() == Some(&0));
            whole(&life.steps[ahead..], reader.policy);
            if let (Some(committed), Some(&last)) = (life.ended, life.steps[ahead..].last()) {
                let expected = match reader.policy {
                    Policy::DropNewest => last,
                    Policy::Every(n) => (committed - 1) / n * n,
                    _ => committed - 1,
                };
                assert_eq!(
                    last, expected,
                    "{key:?} {reader:?} lost the end of {committed} steps: {log:?}"
                );
            }
        }
        let ended = log.lives.iter().any(|life| life.ended > Some(0));
        let calm = log.lives.len() == reader.size as usize && world.plan.kills.is_empty();
        let complete = matches!(reader.policy, Policy::Block | Policy::Spill)
            && reader.start == Start::Earliest;
        let config = &world.plan.config;
        let waited_for = match config.expected[..] {
            [] => log.first && config.unread == Unread::Block,
            // Who may come later than that is not waited for so long.
            [..] => {
                let named = |expected: &Expected| expected.group == reader.group;
                config.linger > 2000 && config.expected.iter().any(named)
            }
        };
        if waited_for && ended && calm && complete {
            assert_eq!(
                all.first(),
                Some(&0),
                "who is waited for begins at the beginning"
            );
        }
    }
}

/// All ranks of a group see the same steps: what one has got is a part of the whole without gaps.
fn one_sequence(steps: &[Step], all: &[Step]) {
    assert!(
        steps.is_sorted() && steps.windows(2).all(|pair| pair[0] < pair[1]),
        "{steps:?}"
    );
    let begin = steps
        .first()
        .map_or(0, |first| all.partition_point(|step| step < first));
    assert_eq!(
        steps,
        &all[begin..begin + steps.len()],
        "another sequence than {all:?}"
    );
}

/// Groups that get everything get everything.
fn whole(steps: &[Step], policy: Policy) {
    let stride = match policy {
        Policy::Block | Policy::Spill => 1,
        Policy::Every(n) => n,
        _ => return,
    };
    assert!(
        steps.iter().all(|step| step.is_multiple_of(stride)),
        "{steps:?} of every {stride}"
    );
    assert!(
        steps.windows(2).all(|pair| pair[1] == pair[0] + stride),
        "{policy:?} got {steps:?}"
    );
}
