//! `samite bench coherence`: guards of a chunk, and commits, of two processes and the agent, which
//! is the home of all chunks; values that processes share, beside Redis; what it takes to go on
//! after a process was killed.
//!
//! A process writes a version of a shared value where it is for Samite, and in its own memory for
//! Redis, and reads it likewise. The first words of all pages are the version's number, and a
//! reader looks at all of them. `share/one-writer-cached` has the same figure of ours beside that
//! of Redis with client-side caching: its reads may return a value that was replaced long ago,
//! which no guard does. `share/partitioned-pipelined` lets Redis have 16 requests of a client on
//! the way; our updates are acknowledged one by one, also there. In `share/ping-pong`, two
//! processes write one value in turn; in `share/ping-pong-each`, each its own, as the lists of
//! Redis are. In `…-own`, the processes are servers themselves: the home of a value is a process
//! that writes it; Redis runs its usual case.

use crate::case::{Bar, Case};
use crate::measure::{Figure, Measure, Pace, size};
use std::time::Duration;

/// Bytes of a short chunk, whose content is in the messages, and of one in shared memory.
const SIZES: [u64; 2] = [64, 1 << 20];
/// Bytes of shared values.
const SHARED: [u64; 3] = [64, 64 << 10, 1 << 20];
/// Operations, and as many round trips, of which a repeat has the quotient.
const TRIPS: u64 = 2000;
/// Processes that share values: one of them writes, or each writes its own.
const SHARERS: u32 = 4;
/// Processes that are killed in a repeat.
const KILLED: u64 = 5;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = SIZES.into_iter().flat_map(guards).collect();
    let kinds = ["ping-pong", "ping-pong-each", "ping-pong-own"];
    cases.extend(
        kinds
            .iter()
            .flat_map(|kind| SHARED.map(|bytes| ping_pong(kind, bytes))),
    );
    cases.extend(["node", "nodes"].map(recovery));
    cases.extend(SHARED.into_iter().flat_map(shared));
    cases
}

fn guards(bytes: u64) -> Vec<Case> {
    let name = |what: &str| format!("{what}/{}", size(bytes));
    let command = |kind: &str| format!("chunk {kind} seconds {bytes}");
    let us = |kind: &str| Case::of(Measure::new(name(kind), command(kind), Figure::us(1.0)));
    let trips = |kind: &str, most: f64| {
        let figure = Figure::lower("round trips", 1.0);
        let name = name(&format!("{kind}/trips"));
        let command = format!("chunk {kind} trips {bytes} {TRIPS} {}", TRIPS / 10);
        let measure = Measure::new(name, command, figure);
        Case::of(measure.at_pace(Pace::Whole)).bar(Bar::at_most(most))
    };
    let hit = Measure::new(name("acquire/hit"), command("hit"), Figure::ns(1.0));
    vec![
        Case::of(hit).bar(Bar::at_most(100.0)),
        us("miss"),
        trips("miss", 3.0),
        us("upgrade"),
        trips("upgrade", 3.0),
        us("commit"),
        us("event"),
        trips("event", 1.5),
        // The writer is a server itself, and the home of what it writes.
        us("event-own"),
        trips("event-own", 1.5),
    ]
}

/// Two processes write in turn: one value, or each its own. The figure is the time of one write.
fn ping_pong(kind: &str, bytes: u64) -> Case {
    let measure = Measure::new(
        format!("share/{kind}/{}", size(bytes)),
        format!("share {kind} {bytes}"),
        Figure::us(2.0),
    );
    Case::of(measure).bar(Bar::ratio(10.0))
}

fn shared(bytes: u64) -> [Case; 5] {
    let case = |name: &str, measure: Measure, bar: Bar| Case {
        name: format!("share/{name}/{}", size(bytes)),
        ranks: SHARERS,
        ..Case::of(measure).bar(bar)
    };
    // The time of a read; the command has no numbers of iterations.
    let read = |kind: &str| {
        let command = format!("share {kind} {bytes} 0 0");
        Measure::new(kind, command, Figure::us(1.0)).at_pace(Pace::Whole)
    };
    // Updates of all processes together.
    let update = |kind: &str| {
        let figure = Figure::rate("updates/s", f64::from(SHARERS));
        Measure::new(kind, format!("share {kind} {bytes}"), figure)
    };
    [
        case("one-writer", read("one-writer"), Bar::ratio(10.0)),
        case("one-writer-cached", read("cached"), Bar::default()),
        case("partitioned", update("partitioned"), Bar::ratio(10.0)),
        case(
            "partitioned-own",
            update("partitioned-own"),
            Bar::ratio(10.0),
        ),
        case("partitioned-pipelined", update("pipelined"), Bar::default()),
    ]
}

/// From `kill -9` of the holder of a write guard to the guard of a process that waits. The holder
/// is on the node of the home, or behaves as if it were on another one.
fn recovery(place: &str) -> Case {
    // A lease of two seconds, and 100 ms.
    let (name, most) = match place {
        "node" => ("recovery/kill", 20.0),
        _ => ("recovery/kill/other-node", 2100.0),
    };
    let command = format!("recovery {place} {KILLED} 0");
    let measure = Measure::new(name, command, Figure::lower("ms", 1e3 / KILLED as f64));
    Case::of(measure.at_pace(Pace::Long(Duration::from_secs(30)))).bar(Bar::at_most(most))
}
