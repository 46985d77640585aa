//! Histories that are possible, and the same with one thing that is not.

use super::*;
use crate::log::{Call, Header, Kind, Level, Record, Role};
use crate::protocol::{ChunkId, GuardId, Process, Version};
use samite_fabric::PeerId;
use std::path::PathBuf;

const CHUNK: ChunkId = ChunkId(4);

fn process(number: u32) -> Process {
    Process {
        peer: PeerId(number),
        incarnation: 1,
    }
}

/// The log of a process that is written by hand.
struct By(Log);

impl By {
    fn new(number: u32, role: Role) -> By {
        By(Log {
            path: PathBuf::from(format!("{number}.dsmlog")),
            header: Header {
                level: Level::Full,
                role,
                process: process(number),
                pid: number,
                name: format!("unit.{number}"),
                start: 0,
                start_since_1970: 0,
                boot: String::new(),
            },
            records: Vec::new(),
            names: [(CHUNK.0, "frame".to_owned())].into(),
            missing: 0,
            is_closed: true,
            is_cut: false,
        })
    }

    fn add(mut self, record: Record) -> By {
        self.0.records.push(record);
        self
    }

    /// A guard that is asked for at the first time and given at the second.
    fn given(self, call: Call, (begin, end): (u64, u64), version: u64, guard: u64) -> By {
        let record = Record::new(Kind::Given, end).by(call).worth(end - begin);
        self.add(at(record, version).under(GuardId(guard)))
    }

    fn ended(self, time: u64, guard: u64) -> By {
        self.add(
            Record::new(Kind::Ended, time)
                .of(CHUNK)
                .under(GuardId(guard)),
        )
    }

    fn committed(self, (begin, end): (u64, u64), version: u64, guard: u64) -> By {
        let record = Record::new(Kind::Committed, end).by(Call::Commit);
        self.add(at(record.worth(end - begin), version).under(GuardId(guard)))
    }

    fn got(self, (begin, end): (u64, u64), version: u64) -> By {
        let record = Record::new(Kind::Got, end).by(Call::Snapshot);
        self.add(at(record.worth(end - begin), version))
    }

    fn subscribed(self, after: u64, latest: bool) -> By {
        let record = Record::new(Kind::Subscribed, 1).of(CHUNK).under(GuardId(7));
        self.add(record.at(Version(after), latest.into()))
    }

    fn event(self, time: u64, version: u64) -> By {
        let record = Record::new(Kind::Event, time).by(Call::Event);
        let record = at(record, version).under(GuardId(7));
        self.add(record.with(process(1)))
    }

    fn adopted(self, time: u64, version: u64, guard: u64) -> By {
        let record = Record::new(Kind::Adopt, time).under(GuardId(guard));
        self.add(at(record, version).with(process(1)))
    }
}

/// A version has ten times its number as its tag.
fn at(record: Record, version: u64) -> Record {
    record.of(CHUNK).at(Version(version), 10 * version)
}

fn client(number: u32) -> By {
    By::new(number, Role::Client)
}

fn server() -> By {
    By::new(9, Role::Server)
}

/// Process 1 commits versions 1 and 2; process 2 reads each of them and is told of them.
fn writer() -> By {
    client(1)
        .given(Call::Write, (10, 12), 0, 1)
        .committed((15, 20), 1, 1)
        .given(Call::Write, (40, 42), 1, 2)
        .committed((45, 50), 2, 2)
}

fn home() -> By {
    server().adopted(17, 1, 1).adopted(47, 2, 2)
}

fn reader() -> By {
    client(2)
        .subscribed(0, false)
        .event(19, 1)
        .given(Call::Read, (22, 24), 1, 100)
        .ended(30, 100)
        .event(48, 2)
        .given(Call::Read, (51, 53), 2, 101)
        .ended(60, 101)
        .got((62, 64), 2)
        .given(Call::Read, (70, 70), 2, 0)
        .ended(71, 0)
}

fn report(logs: Vec<By>) -> Report {
    let logs: Vec<Log> = logs.into_iter().map(|log| log.0).collect();
    check(&logs)
}

#[track_caller]
fn consistent(logs: Vec<By>) {
    let report = report(logs);
    assert!(report.is_consistent(), "{:#?}", report.violations);
    assert_eq!(report.unchecked, [] as [String; 0]);
}

/// Expects one rule to be broken, and a sentence that says that.
#[track_caller]
fn broken(rule: Rule, said: &str, logs: Vec<By>) {
    let report = report(logs);
    let rules: Vec<Rule> = report.violations.iter().map(|one| one.rule).collect();
    assert!(rules.contains(&rule), "{:#?}", report.violations);
    let all: Vec<String> = report.violations.iter().map(ToString::to_string).collect();
    assert!(all.iter().any(|one| one.contains(said)), "{all:#?}");
}

/// A read without a message spans the commit that it saw: it began before it.
#[test]
fn a_read_may_begin_before_the_commit_that_it_sees() {
    let read = |times| client(3).given(Call::Read, times, 2, 0).ended(49, 0);
    consistent(vec![writer(), home(), reader(), read((46, 48))]);
    let logs = vec![writer(), home(), reader(), read((46, 46))];
    broken(Rule::Committed, "before its commit", logs);
}

#[test]
fn what_happened_in_order_is_consistent() {
    let report = report(vec![home(), writer(), reader()]);
    assert!(report.is_consistent(), "{:#?}", report.violations);
    let counts = (report.chunks, report.commits, report.reads, report.events);
    assert_eq!(counts, (1, 2, 6, 2));
    assert!(report.unchecked.is_empty());
}

#[test]
fn what_overlaps_may_come_in_any_order() {
    // A read and a snapshot while version 2 is committed.
    for version in [1, 2] {
        let reader = client(3).got((44, 48), version).got((46, 51), version);
        consistent(vec![home(), writer(), reader]);
    }
    // Two guards of one process that were taken without messages.
    let reader = client(3)
        .given(Call::Read, (21, 21), 1, 0)
        .given(Call::Read, (22, 22), 1, 0)
        .ended(23, 0)
        .ended(38, 0);
    consistent(vec![home(), writer(), reader]);
}

#[test]
fn a_version_is_committed_once() {
    let other = client(3).committed((15, 21), 1, 3);
    broken(
        Rule::Unique,
        "version 1 of \"frame\" was committed by unit.1 at 0.000000 s and by unit.3",
        vec![home(), writer(), other],
    );
    let home = server().adopted(17, 1, 1).adopted(47, 1, 2);
    broken(Rule::Unique, "committed version 1", vec![home, writer()]);
    let home = server().adopted(17, 1, 1).adopted(47, 3, 2);
    broken(Rule::Unique, "version 3", vec![home]);
    let home = server().adopted(47, 1, 1).adopted(17, 2, 2);
    broken(Rule::Unique, "after version 1", vec![home]);
}

/// A server takes the chunk over at version 5: what was before is not in its log.
#[test]
fn a_chunk_that_is_taken_over_begins_with_its_version() {
    let created = |version| {
        Record::new(Kind::Created, 10)
            .of(CHUNK)
            .at(Version(version), 0)
    };
    let home = |version| {
        server()
            .add(created(version))
            .adopted(11, 5, 0)
            .adopted(17, 6, 1)
    };
    let writer = || client(1).committed((15, 20), 6, 1);
    let told = client(2).subscribed(3, false).event(12, 4).event(13, 5);
    let told = told.event(19, 6).got((21, 22), 6);
    consistent(vec![home(5), writer(), told]);
    let said = "committed version 5";
    broken(Rule::Unique, said, vec![home(0), writer()]);
    broken(Rule::Unique, said, vec![home(4), writer()]);
    let stale = client(2).got((18, 19), 4);
    broken(
        Rule::Fresh,
        "read version 4",
        vec![home(5), writer(), stale],
    );
}

#[test]
fn a_commit_takes_effect_while_it_is_made() {
    let early = server().adopted(14, 1, 1).adopted(47, 2, 2);
    broken(Rule::Effect, "but its home at", vec![early, writer()]);
    let late = server().adopted(21, 1, 1).adopted(47, 2, 2);
    broken(Rule::Effect, "but its home at", vec![late, writer()]);
    let lost = server().adopted(17, 1, 1);
    broken(Rule::Effect, "but its home has not", vec![lost, writer()]);
    let other = client(3).committed((15, 20), 1, 1);
    let said = "its home has it of unit.1";
    broken(Rule::Effect, said, vec![home(), client(1), other]);
}

/// A home that is killed does not record what owners have committed last, but may have recorded
/// later events of other chunks.
#[test]
fn what_a_killed_home_has_not_recorded_may_have_been() {
    let killed = |last: u64| {
        let other = Record::new(Kind::Created, 100).of(ChunkId(CHUNK.0 + 1));
        let mut home = server().adopted(17, 1, 1);
        if last > 2 {
            home = home.adopted(60, last, 3);
        }
        home.0.is_closed = false;
        home.add(other)
    };
    consistent(vec![killed(1), writer()]);
    let said = "but its home has not";
    broken(Rule::Effect, said, vec![killed(3), writer()]);
}

#[test]
fn only_what_was_committed_is_read() {
    let reader = client(2).got((51, 52), 3);
    broken(
        Rule::Committed,
        "which nobody committed",
        vec![home(), writer(), reader],
    );
    let reader = client(2).got((41, 44), 2);
    broken(
        Rule::Committed,
        "before its commit",
        vec![home(), writer(), reader],
    );
    // Without the home's log, the beginning of the commit counts.
    let reader = client(2).got((41, 44), 2);
    broken(Rule::Committed, "before its commit", vec![writer(), reader]);
    let read = Record::new(Kind::Got, 52).of(CHUNK).at(Version(2), 21);
    let reader = client(2).add(read.by(Call::Snapshot));
    broken(
        Rule::Committed,
        "under tag 21",
        vec![home(), writer(), reader],
    );
    let read = Record::new(Kind::Got, 5).of(CHUNK).at(Version(0), 1);
    let reader = client(2).add(read.by(Call::Snapshot));
    broken(
        Rule::Committed,
        "nothing was committed",
        vec![home(), reader],
    );
    let told = client(2).subscribed(0, false).event(16, 1);
    broken(
        Rule::Committed,
        "was told of version 1",
        vec![home(), writer(), told],
    );
}

#[test]
fn nothing_older_is_read_than_what_was_there() {
    // A commit that was acknowledged, and one that only its home knows.
    let said = "unit.2 read version 1 of \"frame\"";
    let stale = || client(2).got((51, 52), 1);
    broken(Rule::Fresh, said, vec![home(), writer(), stale()]);
    broken(Rule::Fresh, said, vec![writer(), stale()]);
    broken(Rule::Fresh, said, vec![home(), stale()]);
    // A guard that was taken without a message, of a version that was replaced.
    let stale = client(2).given(Call::Read, (48, 48), 1, 0).ended(49, 0);
    broken(Rule::Fresh, said, vec![home(), stale]);
    // Another process has read a newer one before; the home's log is lost.
    let other = client(3).got((46, 48), 2);
    let stale = client(2).got((49, 52), 1);
    broken(Rule::Fresh, said, vec![other, stale]);
    // An event was taken before.
    let stale = client(2).subscribed(1, false).event(48, 2).got((49, 52), 1);
    broken(Rule::Fresh, said, vec![writer(), stale]);
    // A commit that replaces nothing.
    let lost = client(3).committed((52, 55), 2, 3);
    broken(
        Rule::Fresh,
        "began to commit version 2",
        vec![writer(), lost],
    );
}

#[test]
fn nothing_is_committed_under_a_guard() {
    let said = "had a guard to read version 1 of \"frame\"";
    for guard in [0, 100] {
        let reader = client(2).given(Call::Read, (22, 24), 1, guard);
        let reader = reader.ended(48, guard);
        broken(Rule::Exclusive, said, vec![home(), writer(), reader]);
        // The guard ended in time, before the writer got its own.
        let reader = client(2).given(Call::Read, (22, 24), 1, guard);
        let reader = reader.ended(41, guard);
        consistent(vec![home(), writer(), reader]);
    }
    // A writer's guard, under which another one commits.
    let other = client(3).given(Call::Write, (30, 31), 1, 3).ended(60, 3);
    let said = "had a guard to write version 1";
    broken(Rule::Exclusive, said, vec![home(), writer(), other]);
}

#[test]
fn a_writer_is_alone() {
    let said = "but unit.3 had one to write it";
    let other = client(3).given(Call::Write, (12, 13), 0, 3).ended(14, 3);
    broken(Rule::Exclusive, said, vec![home(), writer(), other]);
    let other = client(3).given(Call::Read, (12, 13), 0, 3).ended(14, 3);
    broken(
        Rule::Exclusive,
        "had one to read it",
        vec![home(), writer(), other],
    );
    // Readers are not.
    let readers = [2, 3].map(|one| {
        let reader = client(one).given(Call::Read, (22, 24), 1, one.into());
        reader.ended(38, one.into())
    });
    let [one, two] = readers;
    consistent(vec![home(), writer(), one, two]);
}

/// Guards that were taken without messages have no numbers, and a put has no guard.
#[test]
fn a_put_ends_no_guard() {
    let put = || {
        client(1)
            .given(Call::Read, (10, 10), 0, 0)
            .committed((15, 20), 1, 0)
    };
    let home = || server().adopted(17, 1, 0);
    broken(
        Rule::Exclusive,
        "had a guard to read version 0",
        vec![home(), put().ended(30, 0)],
    );
    let before = client(1).given(Call::Read, (10, 10), 0, 0).ended(11, 0);
    consistent(vec![home(), before.committed((15, 20), 1, 0)]);
}

/// A guard ends when its server says so, and at the last record of a process that was killed.
#[test]
fn the_guards_of_the_dead_end() {
    let reader = || client(2).given(Call::Read, (22, 24), 1, 100);
    for kind in [Kind::Lost, Kind::Fence] {
        let gone = Record::new(kind, 35).with(process(2));
        let home = || server().adopted(17, 1, 1).add(gone).adopted(47, 2, 2);
        let fenced = reader().ended(55, 100);
        consistent(vec![home(), writer(), fenced]);
        // A guard that was given after that has not ended.
        let again = reader().ended(36, 100);
        let again = again.given(Call::Read, (37, 38), 1, 102).ended(55, 102);
        let said = "had a guard to read version 1";
        broken(Rule::Exclusive, said, vec![home(), writer(), again]);
    }
    let mut killed = reader();
    killed.0.is_closed = false;
    consistent(vec![home(), writer(), killed]);
}

#[test]
fn events_come_in_order() {
    let told = |versions: &[u64], latest| {
        let begin = client(2).subscribed(0, latest);
        let each = versions.iter();
        let log = each.fold(begin, |log, version| log.event(60, *version));
        vec![home(), writer(), log]
    };
    consistent(told(&[1, 2], false));
    consistent(told(&[2], true));
    broken(Rule::Ordered, "told of version 1", told(&[1, 1], false));
    broken(Rule::Ordered, "after version 2", told(&[2, 1], true));
    broken(Rule::Ordered, "told of version 2", told(&[2], false));
    // Some were missed, and counted.
    let missed = Record::new(Kind::Missed, 59).of(CHUNK).under(GuardId(7));
    let log = client(2).subscribed(0, false).add(missed.worth(1));
    consistent(vec![home(), writer(), log.event(60, 2)]);
    // Another writer is named than the one that wrote it.
    let event = at(Record::new(Kind::Event, 60), 1).under(GuardId(7));
    let log = client(2).subscribed(0, false).add(event.with(process(3)));
    broken(
        Rule::Committed,
        "which it did not",
        vec![home(), writer(), log],
    );
}

#[test]
fn a_version_is_taken_once() {
    let takes = |number, version| {
        let guard = u64::from(number) + 100;
        let log = client(number).given(Call::Take, (51, 53), version, guard);
        log.ended(54, guard)
    };
    broken(
        Rule::Taken,
        "was taken by unit.2",
        vec![home(), writer(), takes(2, 2), takes(3, 2)],
    );
    consistent(vec![home(), writer(), takes(2, 2)]);
}

#[test]
fn what_is_not_known_is_not_held_against_anybody() {
    // The home's log ends early: later commits are not in it.
    let mut home = server().adopted(17, 1, 1);
    home.0.is_closed = false;
    let report_of = report(vec![home, writer(), reader()]);
    assert!(report_of.is_consistent(), "{:#?}", report_of.violations);
    // Records are missing: an event, and the end of a guard.
    let mut reader = client(2).subscribed(0, false).event(60, 2);
    reader = reader.given(Call::Read, (22, 24), 1, 100);
    reader.0.missing = 2;
    let report_of = report(vec![self::home(), writer(), reader]);
    assert!(report_of.is_consistent(), "{:#?}", report_of.violations);
    assert_eq!(report_of.unchecked.len(), 1);
    // The end of a guard without a number is missing: which one it is that ended is not known.
    let mut reader = client(2).given(Call::Read, (18, 18), 1, 0);
    reader = reader.given(Call::Read, (52, 52), 2, 0).ended(53, 0);
    reader.0.missing = 1;
    let report_of = report(vec![self::home(), writer(), reader]);
    assert!(report_of.is_consistent(), "{:#?}", report_of.violations);
    // Of several servers one has an incomplete log, in whatever order they come: a commit, and that
    // a guard has ended.
    let commits = || client(3).committed((15, 20), 1, 7);
    for is_first in [true, false] {
        for level in [Level::Full, Level::Counters] {
            let mut incomplete = By::new(8, Role::Server).adopted(47, 2, 2);
            incomplete.0.header.level = level;
            incomplete.0.missing = u64::from(level == Level::Full);
            let complete = server();
            let servers = match is_first {
                true => [incomplete, complete],
                false => [complete, incomplete],
            };
            let stopped = client(2).given(Call::Read, (22, 24), 1, 100).ended(55, 100);
            let logs = servers.into_iter().chain([commits(), stopped]);
            let report_of = report(logs.collect());
            assert!(report_of.is_consistent(), "{:#?}", report_of.violations);
            let all = report_of.unchecked.join("\n");
            assert!(all.contains("no complete log of each server"), "{all}");
        }
    }
    // Counters cannot be checked.
    let mut counters = client(2);
    counters.0.header.level = Level::Counters;
    let report_of = report(vec![self::home(), counters]);
    assert!(report_of.unchecked[0].contains("counters only"));
}

/// Whatever the records of a file say, the checker ends with a report.
#[test]
fn no_records_break_the_checker() {
    let name = "history::tests::no_records_break_the_checker";
    samite_testkit::fuzz::rounds(name, 2000, |_, random| {
        let logs = [Role::Server, Role::Client, Role::Client].map(|role| {
            let mut log = By::new(random.u32(..3), role);
            for _ in 0..random.u32(..30) {
                let mut number = || match random.u32(..8) {
                    0 => u64::MAX - random.u64(..2),
                    _ => random.u64(..4),
                };
                let (time, version, guard, tag) = (number(), number(), number(), number());
                let record = Record::new(*random.choice(Kind::ALL).expect("some"), time)
                    .by(*random.choice(Call::ALL).expect("some"))
                    .of(ChunkId(random.u64(..2)))
                    .under(GuardId(guard))
                    .with(process(random.u32(..3)));
                log = log.add(record.at(Version(version), tag).worth(random.u64(..4)));
            }
            log.0.missing = random.u64(..2);
            log.0.is_closed = random.bool();
            log.0
        });
        check(&logs);
    });
}
