//! The subscribers of one chunk: what each of them was told, and what it has taken.
//!
//! The server tells of commits on its own, by notes. A subscriber acknowledges what it has taken;
//! until then at most a window of events is on the way to it. What it has not been told yet is in
//! the history of the chunk; what is older than the history is missed, and counted.
//!
//! # Invariants
//! S1 Events are told in the order of their versions, each once.
//! S2 At most a window of events is on the way to a subscriber.
//! S3 A lossless subscriber misses nothing that is committed after it has subscribed: the server
//!    lets nobody write while [`Subscribers::room`] is zero.

use super::{Event, Policy, Process, SubscriptionId, Version};
use std::collections::{BTreeMap, VecDeque};

/// The most events on the way to a subscriber that makes nobody wait.
const WINDOW: u64 = 64;

/// The highest mark: what was not told yet has to be in the history of its chunk.
const HIGHEST: u32 = 1024;

/// The most bytes of content that were told to a subscriber and not taken, besides one version:
/// the server keeps it until then.
const MOST_CONTENT: u64 = 512 << 20;

/// Who subscribes: a process, and the number that it chose.
pub type Subscriber = (Process, SubscriptionId);

/// What a subscriber wants, and has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    /// The service of the process that takes the events.
    inbox: u16,
    policy: Policy,
    /// Whether it looks itself what the owner of the chunk commits.
    watches: bool,
    /// How many versions may be on the way with their content.
    contents: u64,
    told: Version,
    /// The events that were told and not taken, the oldest first, and whether with their content.
    on_way: VecDeque<(Version, bool)>,
}

/// Events for a subscriber.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Telling {
    /// The subscriber.
    pub to: Subscriber,
    /// Its service.
    pub inbox: u16,
    /// The events, the oldest first.
    pub events: Vec<Event>,
    /// The number of events before them that are not known any more.
    pub missed: u64,
    /// Whether the content goes with the last event, which is that of the present version.
    pub with_content: bool,
}

/// The subscribers of a chunk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Subscribers(BTreeMap<Subscriber, State>);

impl Subscribers {
    /// Adds a subscriber to what is committed after a version. `content`: the bytes of the chunk,
    /// if the content of its versions is wanted. `watches`: whether it looks itself what the owner
    /// of the chunk commits, if that is possible.
    pub fn add(
        &mut self,
        who: Subscriber,
        inbox: u16,
        (policy, content, watches): (Policy, Option<u64>, bool),
        after: Version,
    ) {
        let state = State {
            inbox,
            policy: policy.within(content),
            watches: watches && content.is_none() && !matches!(policy, Policy::Lossless { .. }),
            contents: content.map_or(0, most_contents),
            told: after,
            on_way: VecDeque::new(),
        };
        self.0.insert(who, state);
    }

    /// A subscriber has taken the events up to a version.
    pub fn took(&mut self, who: Subscriber, version: Version) {
        if let Some(state) = self.0.get_mut(&who) {
            state.on_way.retain(|(told, _)| *told > version);
            if state.watches {
                // It may have seen more than it was told.
                state.told = state.told.max(version);
            }
        }
    }

    /// Removes a subscriber.
    pub fn remove(&mut self, who: Subscriber) {
        self.0.remove(&who);
    }

    /// Removes the subscribers of a process. Returns them.
    pub fn lost(&mut self, process: Process) -> Vec<Subscriber> {
        let of_process = self.0.keys().filter(|(of, _)| *of == process);
        let all: Vec<_> = of_process.copied().collect();
        all.iter().for_each(|who| self.remove(*who));
        all
    }

    /// Returns all subscribers, and their services.
    pub fn all(&self) -> Vec<(Subscriber, u16)> {
        let all = self.0.iter().map(|(who, state)| (*who, state.inbox));
        all.collect()
    }

    /// Returns true if all subscribers look themselves what the owner of the chunk commits.
    pub fn all_watch(&self) -> bool {
        self.0.values().all(|state| state.watches)
    }

    /// No longer lets anybody wait for the subscribers of a process.
    pub fn fence(&mut self, process: Process) {
        for ((of, _), state) in &mut self.0 {
            if *of == process && matches!(state.policy, Policy::Lossless { .. }) {
                state.policy = Policy::Every;
            }
        }
    }

    /// Returns how many commits may follow before a lossless subscriber is at its mark.
    pub fn room(&self, present: Version) -> u64 {
        let rooms = self.0.values().map(|state| state.room(present));
        rooms.min().unwrap_or(u64::MAX)
    }

    /// Returns the processes that writers have to wait for.
    pub fn full(&self, present: Version) -> impl Iterator<Item = Process> {
        let full = self.0.iter();
        let full = full.filter(move |(_, state)| state.room(present) == 0);
        full.map(|((process, _), _)| *process)
    }

    /// Returns what is to be told now, up to a version, and counts it as told. `history`: the last
    /// commits, the oldest first.
    pub fn tell(&mut self, present: Version, history: &VecDeque<Event>) -> Vec<Telling> {
        let tell = |(who, state): (&Subscriber, &mut State)| state.tell(*who, present, history);
        self.0.iter_mut().filter_map(tell).collect()
    }
}

impl State {
    fn room(&self, present: Version) -> u64 {
        match self.policy {
            Policy::Lossless { high_water } => {
                let untold = present.0.saturating_sub(self.told.0);
                let waiting = untold.saturating_add(self.on_way.len() as u64);
                mark(high_water).saturating_sub(waiting)
            }
            Policy::Every | Policy::Latest => u64::MAX,
        }
    }

    fn tell(
        &mut self,
        to: Subscriber,
        present: Version,
        history: &VecDeque<Event>,
    ) -> Option<Telling> {
        let after = present.0.saturating_add(1);
        let oldest = history.front().map_or(after, |first| first.version.0);
        let oldest = oldest.min(after);
        let (window, next) = match self.policy {
            Policy::Every => (WINDOW, self.told.0.saturating_add(1)),
            Policy::Lossless { high_water } => (mark(high_water), self.told.0.saturating_add(1)),
            Policy::Latest => (1, present.0),
        };
        let free = window.saturating_sub(self.on_way.len() as u64);
        if self.told >= present || free == 0 {
            return None;
        }
        let missed = oldest.saturating_sub(next);
        let first = next + missed;
        let count = after.saturating_sub(first).min(free);
        if count == 0 {
            return None; // What is missed is told with what follows.
        }
        let last = first + count - 1;
        self.told = Version(last);
        let skip = (first - oldest) as usize;
        let contents = self.on_way.iter().filter(|(_, with)| *with).count() as u64;
        let with_content = contents < self.contents && last == present.0;
        let told =
            (first..=last).map(|version| (Version(version), with_content && version == last));
        self.on_way.extend(told);
        Some(Telling {
            to,
            inbox: self.inbox,
            events: (history.iter().skip(skip))
                .take(count as usize)
                .copied()
                .collect(),
            missed,
            with_content,
        })
    }
}

fn mark(high_water: u32) -> u64 {
    u64::from(high_water.clamp(1, HIGHEST))
}

/// Returns how many versions of that many bytes a subscriber may have on the way.
pub(crate) fn most_contents(bytes: u64) -> u64 {
    (MOST_CONTENT / bytes.max(1)).max(1)
}

impl Policy {
    /// Returns the same policy with the mark that holds if each event brings so many bytes: what a
    /// lossless subscriber has not taken is bounded in bytes, too.
    pub(crate) fn within(self, content: Option<u64>) -> Policy {
        match (self, content) {
            (Policy::Lossless { high_water }, Some(bytes)) => {
                let most = u32::try_from(most_contents(bytes)).unwrap_or(u32::MAX);
                let high_water = high_water.min(most);
                Policy::Lossless { high_water }
            }
            (policy, _) => policy,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::tests::process;

    const WHO: fn() -> Subscriber = || (process(1), SubscriptionId(1));

    /// A chunk whose history has at most three commits.
    #[derive(Default)]
    struct Commits {
        subscribers: Subscribers,
        history: VecDeque<Event>,
        present: Version,
    }

    impl Commits {
        fn subscribed(policy: Policy) -> Commits {
            let mut commits = Commits::default();
            commits
                .subscribers
                .add(WHO(), 7, (policy, Some(8), false), Version::default());
            commits
        }

        fn commit(&mut self) -> Option<Telling> {
            self.present = self.present.next();
            let (version, tag) = (self.present, self.present.0 * 10);
            let writer = process(2);
            self.history.push_back(Event {
                version,
                tag,
                writer,
            });
            if self.history.len() > 3 {
                self.history.pop_front();
            }
            self.tell()
        }

        fn tell(&mut self) -> Option<Telling> {
            let mut told = self.subscribers.tell(self.present, &self.history);
            assert!(told.len() <= 1);
            told.pop()
        }

        fn took(&mut self, version: u64) -> Option<Telling> {
            self.subscribers.took(WHO(), Version(version));
            self.tell()
        }
    }

    fn versions(telling: Option<Telling>) -> (Vec<u64>, u64, bool) {
        let telling = telling.expect("there are events");
        assert_eq!((telling.to, telling.inbox), (WHO(), 7));
        let each = telling.events.iter().map(|event| {
            assert_eq!(event.tag, event.version.0 * 10);
            event.version.0
        });
        (each.collect(), telling.missed, telling.with_content)
    }

    #[test]
    fn each_commit_is_told_at_once() {
        let mut commits = Commits::subscribed(Policy::Every);
        for version in 1..=WINDOW {
            assert_eq!(versions(commits.commit()), (vec![version], 0, true));
        }
        // The window is full; then the history is too short.
        for _ in 0..10 {
            assert_eq!(commits.commit(), None);
        }
        let told = commits.took(1);
        assert_eq!(versions(told), (vec![72], 7, false));
        let told = commits.took(64);
        assert_eq!(versions(told), (vec![73, 74], 0, true));
        assert_eq!(commits.tell(), None);
    }

    #[test]
    fn the_latest_is_told_when_the_one_before_was_taken() {
        let mut commits = Commits::subscribed(Policy::Latest);
        assert_eq!(versions(commits.commit()), (vec![1], 0, true));
        for _ in 0..5 {
            assert_eq!(commits.commit(), None);
        }
        assert_eq!(versions(commits.took(1)), (vec![6], 0, true));
        assert_eq!(commits.took(6), None);
        assert_eq!(versions(commits.commit()), (vec![7], 0, true));
    }

    #[test]
    fn a_lossless_subscriber_lets_writers_wait() {
        let mut commits = Commits::subscribed(Policy::Lossless { high_water: 2 });
        assert_eq!(commits.subscribers.room(commits.present), 2);
        assert!(commits.commit().is_some());
        assert!(commits.commit().is_some());
        assert_eq!(commits.subscribers.room(commits.present), 0);
        let full: Vec<_> = commits.subscribers.full(commits.present).collect();
        assert_eq!(full, [process(1)]);
        // What was not told cannot have been taken.
        assert_eq!(commits.took(99), None);
        assert_eq!(commits.subscribers.room(commits.present), 2);
        commits.commit();
        assert_eq!(commits.subscribers.room(commits.present), 1);
        commits.subscribers.fence(process(1));
        assert_eq!(commits.subscribers.room(commits.present), u64::MAX);
        assert_eq!(commits.subscribers.lost(process(2)), []);
        assert_eq!(commits.subscribers.lost(process(1)), [WHO()]);
        assert_eq!(commits.commit(), None);
    }

    /// What the server keeps for a subscriber is bounded in bytes: one that lets nobody wait is
    /// told of later versions without their content, a lossless one lets writers wait earlier.
    #[test]
    fn contents_that_are_not_taken_are_bounded_in_bytes() {
        const LONG: u64 = MOST_CONTENT / 3;
        let told = |policy, bytes| {
            let mut commits = Commits::default();
            (commits.subscribers).add(WHO(), 7, (policy, Some(bytes), false), Version(0));
            let each = (0..6).map(|_| versions(commits.commit()).2).collect();
            (commits, each)
        };
        let (mut commits, each): (Commits, Vec<bool>) = told(Policy::Every, LONG);
        assert_eq!(each, [true, true, true, false, false, false]);
        commits.took(1);
        assert_eq!(versions(commits.commit()), (vec![7], 0, true));
        assert_eq!(versions(commits.commit()), (vec![8], 0, false));
        // One that is longer than all may be has a place all the same.
        let (_, each): (Commits, Vec<bool>) = told(Policy::Every, 2 * MOST_CONTENT);
        assert_eq!(each, [true, false, false, false, false, false]);
        let mut commits = Commits::default();
        let policy = Policy::Lossless { high_water: 10 };
        (commits.subscribers).add(WHO(), 7, (policy, Some(LONG), false), Version(0));
        for version in 1..=3 {
            assert_eq!(versions(commits.commit()), (vec![version], 0, true));
        }
        assert_eq!(commits.subscribers.room(commits.present), 0);
        commits.took(1);
        assert_eq!(commits.subscribers.room(commits.present), 1);
    }

    /// One that begins in the past is told what is known, a window at a time.
    #[test]
    fn what_is_past_is_told() {
        let mut commits = Commits::default();
        for _ in 0..5 {
            assert_eq!(commits.commit(), None);
        }
        let policy = Policy::Lossless { high_water: 2 };
        (commits.subscribers).add(WHO(), 7, (policy, Some(8), false), Version(1));
        assert_eq!(versions(commits.tell()), (vec![3, 4], 1, false));
        assert_eq!(commits.subscribers.room(commits.present), 0);
        assert_eq!(versions(commits.took(3)), (vec![5], 0, true));
        // One that knows more than there is waits for it.
        (commits.subscribers).add(WHO(), 7, (Policy::Every, None, false), Version(9));
        for _ in 6..=9 {
            assert_eq!(commits.commit(), None);
        }
        assert_eq!(versions(commits.commit()), (vec![10], 0, false));
    }
}
