//! The rules that the operations on one chunk have to keep.

use super::collect::{Adopted, Chunk, Heard, History, Operation, Subscription};
use super::{Report, Rule};
use crate::log::Call;
use crate::protocol::Process;
use std::collections::BTreeMap;

/// Checks one chunk.
pub(super) fn check(history: &History, chunk: &Chunk, report: &mut Report) {
    report.chunks += 1;
    report.commits += chunk.commits.len() as u64;
    report.reads += chunk.reads.len() as u64;
    let told = chunk
        .subscriptions
        .values()
        .map(|all| all.told.len() as u64);
    report.events += told.sum::<u64>();
    let checked = Checked {
        history,
        chunk,
        versions: versions(chunk),
        seen: Seen::of(chunk),
    };
    checked.commits_are_unique(report);
    checked.commits_take_effect(report);
    checked.reads_are_of_commits(report);
    checked.reads_are_fresh(report);
    checked.guards_exclude(report);
    checked.writers_are_alone(report);
    for ((process, ..), subscription) in &chunk.subscriptions {
        checked.events_are_ordered(*process, subscription, report);
    }
    checked.versions_are_taken_once(report);
}

/// A chunk, and what is known of its versions.
struct Checked<'a> {
    history: &'a History,
    chunk: &'a Chunk,
    versions: BTreeMap<u64, Version>,
    seen: Seen,
}

/// What is known of a version.
#[derive(Clone, Copy, Debug)]
struct Version {
    /// From when on it may have been seen: the moment of the commit, or the beginning of one that
    /// only its client knows.
    since: u64,
    tag: u64,
    writer: Process,
}

fn versions(chunk: &Chunk) -> BTreeMap<u64, Version> {
    let of_clients = chunk.commits.iter().map(|commit| {
        let version = Version {
            since: commit.begin,
            tag: commit.tag,
            writer: commit.process,
        };
        (commit.version, version)
    });
    let of_home = chunk.adopted.iter().map(|adopted| {
        let version = Version {
            since: adopted.time,
            tag: adopted.tag,
            writer: adopted.writer,
        };
        (adopted.version, version)
    });
    of_clients.chain(of_home).collect()
}

/// The newest version that is known to exist, by time.
struct Seen(Vec<(u64, u64)>);

impl Seen {
    fn of(chunk: &Chunk) -> Seen {
        let operations = chunk.commits.iter().chain(&chunk.reads);
        let operations = operations.map(|operation| (operation.end, operation.version));
        let adopted = chunk.adopted.iter().map(|one| (one.time, one.version));
        let told = chunk.subscriptions.values().flat_map(|all| &all.told);
        let told = told.filter_map(|heard| match heard {
            Heard::Event { time, version, .. } => Some((*time, *version)),
            Heard::Missed(_) => None,
        });
        let mut seen: Vec<_> = operations.chain(adopted).chain(told).collect();
        seen.sort_unstable();
        let mut newest = 0;
        for (_, version) in &mut seen {
            newest = newest.max(*version);
            *version = newest;
        }
        Seen(seen)
    }

    /// Returns the newest version that was seen before a moment.
    fn before(&self, time: u64) -> u64 {
        let count = self.0.partition_point(|(at, _)| *at < time);
        count.checked_sub(1).map_or(0, |last| self.0[last].1)
    }
}

impl Checked<'_> {
    fn named(&self, process: Process) -> String {
        self.history.named(process)
    }

    fn at(&self, time: u64) -> String {
        self.history.seconds(time)
    }

    /// Returns true if the home's log would have a commit at that time.
    fn is_known(&self, time: u64) -> bool {
        self.history.known_until.is_some_and(|until| time < until)
    }

    /// H1.
    fn commits_are_unique(&self, report: &mut Report) {
        let name = &self.chunk.name;
        let mut last: Option<&Adopted> = None;
        for adopted in &self.chunk.adopted {
            let first = self.chunk.first.max(1);
            let next = last.map_or(first, |last| last.version.saturating_add(1));
            // Without its beginning, nothing is known of what comes first.
            let is_next = adopted.version == next || self.history.known_until.is_none();
            if !is_next || last.is_some_and(|last| adopted.time < last.time) {
                report.add(Rule::Unique, || {
                    format!(
                        "the home of \"{name}\" committed version {} at {}, after version {}",
                        adopted.version,
                        self.at(adopted.time),
                        next - 1
                    )
                });
            }
            last = Some(adopted);
        }
        let mut by_version: BTreeMap<u64, &Operation> = BTreeMap::new();
        for commit in &self.chunk.commits {
            if let Some(other) = by_version.insert(commit.version, commit) {
                report.add(Rule::Unique, || {
                    format!(
                        "version {} of \"{name}\" was committed by {} at {} and by {} at {}",
                        commit.version,
                        self.named(other.process),
                        self.at(other.end),
                        self.named(commit.process),
                        self.at(commit.end)
                    )
                });
            }
        }
    }

    /// H2.
    fn commits_take_effect(&self, report: &mut Report) {
        let name = &self.chunk.name;
        let adopted = self.chunk.adopted.iter();
        let adopted: BTreeMap<u64, &Adopted> = adopted.map(|one| (one.version, one)).collect();
        // A home that was killed may have adopted later ones, of owners, which it did not record
        // any more.
        let last = match self.history.known_until {
            Some(u64::MAX) => u64::MAX,
            _ => adopted.last_key_value().map_or(0, |(version, _)| *version),
        };
        for commit in &self.chunk.commits {
            let Operation {
                version,
                begin,
                end,
                ..
            } = *commit;
            let who = || self.named(commit.process);
            match adopted.get(&version) {
                None if (self.chunk.first..=last).contains(&version) && self.is_known(end) => report.add(Rule::Effect, || {
                    format!(
                        "{} committed version {version} of \"{name}\" at {}, but its home has not",
                        who(),
                        self.at(end)
                    )
                }),
                None => {}
                Some(home) if home.writer != commit.process || home.tag != commit.tag => {
                    report.add(Rule::Effect, || {
                        format!(
                            "{} committed version {version} of \"{name}\" under tag {}, but its \
                             home has it of {} under tag {}",
                            who(),
                            commit.tag,
                            self.named(home.writer),
                            home.tag
                        )
                    });
                }
                Some(home) if home.time < begin || home.time > end => {
                    report.add(Rule::Effect, || {
                        format!(
                            "{} committed version {version} of \"{name}\" between {} and {}, but \
                             its home at {}",
                            who(),
                            self.at(begin),
                            self.at(end),
                            self.at(home.time)
                        )
                    });
                }
                Some(_) => {}
            }
        }
    }

    /// H3, for one version that was seen.
    fn is_of_commit(
        &self,
        (process, did): (Process, &str),
        (version, tag): (u64, u64),
        time: u64,
        report: &mut Report,
    ) -> Option<&Version> {
        let name = &self.chunk.name;
        let who = || {
            format!(
                "{} {did} version {version} of \"{name}\"",
                self.named(process)
            )
        };
        let known = self.versions.get(&version);
        match known {
            // It was committed at another home.
            None if version < self.chunk.first => {}
            None if version == 0 && tag == 0 => {}
            None if version == 0 => report.add(Rule::Committed, || {
                format!("{} under tag {tag}, though nothing was committed", who())
            }),
            None if self.is_known(time) => report.add(Rule::Committed, || {
                let at = self.at(time);
                format!("{} at {at}, which nobody committed", who())
            }),
            None => {}
            Some(known) if known.since > time => report.add(Rule::Committed, || {
                let (at, since) = (self.at(time), self.at(known.since));
                format!("{} at {at}, before its commit at {since}", who())
            }),
            Some(known) if known.tag != tag => report.add(Rule::Committed, || {
                let of = known.tag;
                format!(
                    "{} under tag {tag}, but it was committed under tag {of}",
                    who()
                )
            }),
            Some(_) => {}
        }
        known
    }

    fn reads_are_of_commits(&self, report: &mut Report) {
        for read in &self.chunk.reads {
            let did = (read.process, "read");
            self.is_of_commit(did, (read.version, read.tag), read.end, report);
        }
    }

    /// H4.
    fn reads_are_fresh(&self, report: &mut Report) {
        let name = &self.chunk.name;
        for read in &self.chunk.reads {
            let newest = self.seen.before(read.begin);
            if read.version < newest {
                report.add(Rule::Fresh, || {
                    format!(
                        "{} read version {} of \"{name}\" from {} to {}, though version {newest} \
                         was there before",
                        self.named(read.process),
                        read.version,
                        self.at(read.begin),
                        self.at(read.end)
                    )
                });
            }
        }
        for commit in &self.chunk.commits {
            let newest = self.seen.before(commit.begin);
            if commit.version <= newest {
                report.add(Rule::Fresh, || {
                    format!(
                        "{} began to commit version {} of \"{name}\" at {}, though version \
                         {newest} was there before",
                        self.named(commit.process),
                        commit.version,
                        self.at(commit.begin)
                    )
                });
            }
        }
    }

    /// H5: nothing is committed under a guard.
    fn guards_exclude(&self, report: &mut Report) {
        let mut adopted: Vec<&Adopted> = self.chunk.adopted.iter().collect();
        adopted.sort_by_key(|one| one.time);
        let guards = self.chunk.reads.iter();
        for guard in guards.filter(|read| read.call != Call::Snapshot) {
            let from = adopted.partition_point(|one| one.time <= guard.end);
            let during = adopted[from..].iter();
            let during = during.take_while(|one| one.time < guard.until);
            let is_other = |one: &&&Adopted| {
                // Of a commit that another server has sent to the home, the guard is not known.
                let is_guard = [guard.guard, 0].contains(&one.guard);
                let is_own = guard.call == Call::Write && one.writer == guard.process && is_guard;
                one.version > guard.version && !is_own
            };
            if let Some(other) = during.clone().find(is_other) {
                report.add(Rule::Exclusive, || {
                    format!(
                        "{} had a guard to {} version {} of \"{}\" from {} to {}, but {} committed \
                         version {} at {}",
                        self.named(guard.process),
                        guard.call.word(),
                        guard.version,
                        self.chunk.name,
                        self.at(guard.end),
                        self.at(guard.until),
                        self.named(other.writer),
                        other.version,
                        self.at(other.time)
                    )
                });
            }
        }
    }

    /// H5: a writer is alone. Guards that were taken without a message are left out: from when on
    /// they are out is not known well enough.
    fn writers_are_alone(&self, report: &mut Report) {
        let guards = self.chunk.reads.iter();
        let guards = guards.filter(|read| read.call != Call::Snapshot && !read.is_own);
        let mut guards: Vec<&Operation> = guards.filter(|read| read.until > read.end).collect();
        guards.sort_by_key(|guard| guard.end);
        // Of those before, the last to end: of all, and of the writers.
        let mut longest: [Option<&Operation>; 2] = [None, None];
        for guard in guards {
            let is_writer = guard.call == Call::Write;
            let before = longest[usize::from(!is_writer)];
            if let Some(other) = before.filter(|other| other.until > guard.end) {
                report.add(Rule::Exclusive, || {
                    format!(
                        "{} had a guard to {} \"{}\" until {}, but {} had one to {} it from {} on",
                        self.named(other.process),
                        other.call.word(),
                        self.chunk.name,
                        self.at(other.until),
                        self.named(guard.process),
                        guard.call.word(),
                        self.at(guard.end)
                    )
                });
            }
            for (place, counts) in [(0, true), (1, is_writer)] {
                let is_longer = longest[place].is_none_or(|other| other.until < guard.until);
                if counts && is_longer {
                    longest[place] = Some(guard);
                }
            }
        }
    }

    /// H6, and H3 for events.
    fn events_are_ordered(&self, process: Process, all: &Subscription, report: &mut Report) {
        let mut last = all.after;
        for heard in &all.told {
            let (time, version, tag, writer) = match heard {
                Heard::Missed(missed) => {
                    last = last.map(|last| last.saturating_add(*missed));
                    continue;
                }
                Heard::Event {
                    time,
                    version,
                    tag,
                    writer,
                } => (*time, *version, *tag, *writer),
            };
            let did = (process, "was told of");
            let known = self.is_of_commit(did, (version, tag), time, report);
            if known.is_some_and(|known| known.writer != writer) {
                report.add(Rule::Committed, || {
                    format!(
                        "{} was told that {} wrote version {version} of \"{}\", which it did not",
                        self.named(process),
                        self.named(writer),
                        self.chunk.name
                    )
                });
            }
            let is_next = last.is_none_or(|last| match all.wants_latest || all.has_gaps {
                true => version > last,
                false => last.checked_add(1) == Some(version),
            });
            if !is_next {
                report.add(Rule::Ordered, || {
                    format!(
                        "{} was told of version {version} of \"{}\" at {}, after version {}",
                        self.named(process),
                        self.chunk.name,
                        self.at(time),
                        last.unwrap_or(0)
                    )
                });
            }
            last = Some(version);
        }
    }

    /// H7.
    fn versions_are_taken_once(&self, report: &mut Report) {
        let mut taken: BTreeMap<u64, &Operation> = BTreeMap::new();
        let reads = self.chunk.reads.iter();
        for read in reads.filter(|read| read.call == Call::Take) {
            if let Some(other) = taken.insert(read.version, read) {
                report.add(Rule::Taken, || {
                    format!(
                        "version {} of \"{}\" was taken by {} at {} and by {} at {}",
                        read.version,
                        self.chunk.name,
                        self.named(other.process),
                        self.at(other.end),
                        self.named(read.process),
                        self.at(read.end)
                    )
                });
            }
        }
    }
}
