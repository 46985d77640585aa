//! What subscribers are told, and what comes with it.

use crate::content::{content, is_whole, number, tag};
use crate::served;
use samite_dsm::{Chunk, Dsm, Error, Policy, Subscription, Version};
use samite_fabric::{Fabric, Mask};
use samite_testkit::{Cluster, Outcome, Who, check, matches_or_fail, pause, point, same};
use std::time::Duration;

/// Returns what runs a body in that many units.
fn runs(count: u32, body: fn(&Fabric, u32) -> Outcome) -> impl Fn(&str, Mask) {
    move |name, mask| {
        let body = |fabric: &Fabric, _: &[_]| body(fabric, fabric.identity().unit);
        served(count, mask).run(name, body);
    }
}

/// Puts the next version.
fn put(chunk: &Chunk<u8>, version: u64) -> Outcome {
    let tag = tag(version);
    same!(chunk.put(&content(chunk, tag), tag)?, Version(version));
    Ok(())
}

/// A writer that does not wait for its readers in any other way.
fn lossless(fabric: &Fabric, unit: u32) -> Outcome {
    const COMMITS: u64 = 60;
    let dsm = Dsm::join(fabric)?;
    let ready = dsm.alloc::<u8>("ready", 1)?;
    for (high_water, length) in [(1, 4096), (1, 20_000), (3, 70_000), (8, 0)] {
        let chunk = dsm.alloc::<u8>(&format!("{length} bytes"), length)?;
        if unit > 0 {
            let policy = Policy::Lossless { high_water };
            let mut versions = chunk.subscribe_with_content(policy, Version::default())?;
            ready.put(&[0], 0)?;
            let mut kept = Vec::new();
            for version in 1..=COMMITS {
                let snapshot = versions.next_version()?;
                same!(
                    (snapshot.version(), number(snapshot.tag())),
                    (Version(version), version)
                );
                is_whole!(chunk, snapshot)?;
                kept.push(snapshot);
                if kept.len() > 4 {
                    let old = kept.remove(0);
                    is_whole!(chunk, old)?;
                }
            }
            continue;
        }
        let mut all = ready.subscribe(Policy::Every, Version::default())?;
        let others = u64::from(fabric.identity().units) - 1;
        let lengths = [4096, 20_000, 70_000, 0];
        let round = lengths.iter().position(|of| *of == length).unwrap_or(0) as u64 + 1;
        while all.after().0 < others * round {
            all.next_event()?;
        }
        for version in 1..=COMMITS {
            put(&chunk, version)?;
        }
    }
    Ok(())
}

everywhere!(a_lossless_subscriber_gets_each_version, runs(3, lossless));

fn full(fabric: &Fabric, unit: u32) -> Outcome {
    let dsm = Dsm::join(fabric)?;
    let chunk = dsm.alloc::<u8>(&format!("of {unit}"), 10)?;
    let policy = Policy::Lossless { high_water: 2 };
    let mut all = chunk.subscribe(policy, Version::default())?;
    for version in 1..=2 {
        chunk.put(&[1; 10], version)?;
    }
    // Readers do not wait, writers do, in whatever way they write.
    same!(chunk.read()?.version(), Version(2));
    let short = Duration::from_millis(30);
    let late = fabric.within(short, || chunk.put(&[2; 10], 3));
    matches_or_fail!(late, Err(Error::Late { .. }));
    let text = late
        .err()
        .map(|error| error.to_string())
        .unwrap_or_default();
    let said = format!("unit.{unit} has not taken its events");
    check!(text.contains(&said), "{text}");
    matches_or_fail!(
        fabric.within(short, || chunk.write().map(drop)),
        Err(Error::Late { .. })
    );
    same!(all.next_event()?.version, Version(1));
    same!(chunk.put(&[3; 10], 3)?, Version(3));
    drop(all);
    // Nobody is waited for any more.
    for version in 4..10 {
        same!(chunk.put(&[1; 10], version)?, Version(version));
    }
    Ok(())
}

everywhere!(writers_wait_for_a_lossless_subscriber, runs(2, full));

fn drafted(fabric: &Fabric, unit: u32) -> Outcome {
    let dsm = Dsm::join(fabric)?;
    for length in [10, 4096, 50_000] {
        let chunk = dsm.alloc::<u8>(&format!("{length} of {unit}"), length)?;
        let mut draft = chunk.draft()?;
        draft.copy_from_slice(&content(&chunk, tag(2)));
        // A draft keeps nobody waiting.
        put(&chunk, 1)?;
        is_whole!(chunk, chunk.read()?)?;
        same!(draft.put(tag(2))?, Version(2));
        is_whole!(chunk, chunk.read()?)?;
        // One that is given up changes nothing, nor does one that comes too late.
        chunk.draft()?.fill(9);
        let guard = chunk.read()?;
        let mut draft = chunk.draft()?;
        draft.fill(9);
        let late = fabric.within(Duration::from_millis(30), || draft.put(9));
        matches_or_fail!(late, Err(Error::Late { .. }));
        drop(guard);
        for version in 3..20 {
            let mut draft = chunk.draft()?;
            draft.copy_from_slice(&content(&chunk, tag(version)));
            same!(draft.put(tag(version))?, Version(version));
            is_whole!(chunk, chunk.snapshot()?)?;
        }
    }
    Ok(())
}

everywhere!(a_draft_is_published_by_its_put, runs(2, drafted));

/// Returns what runs a writer of three versions, and a reader, which has the event of the first one
/// when the agent is stopped, and says when it has tried to get that version.
pub(crate) fn while_stopped(read: fn(&Fabric, Subscription<u8>) -> Outcome) -> impl Fn(&str, Mask) {
    let unit = move |fabric: &Fabric| -> Outcome {
        let chunk = Dsm::join(fabric)?.alloc::<u8>("chunk", 100_000)?;
        if fabric.identity().unit == 0 {
            pause("begins");
            for version in 1..=3 {
                put(&chunk, version)?;
            }
            return Ok(());
        }
        let policy = Policy::Lossless { high_water: 1 };
        let mut versions = chunk.subscribe(policy, Version::default())?;
        point("subscribed");
        Subscription::select(&mut [&mut versions], fabric.deadline())?;
        pause("has an event");
        read(fabric, versions)
    };
    move |name, mask| {
        let body = |fabric: &Fabric, _: &[_]| unit(fabric);
        served(2, mask).orchestrate(name, body, |cluster: &mut Cluster| {
            let (writer, reader) = (Who::Unit(0), Who::Unit(1));
            cluster.wait_point(reader, "subscribed");
            cluster.wait_point(writer, "begins");
            cluster.release(writer);
            cluster.wait_point(reader, "has an event");
            cluster.stop(Who::Agent);
            cluster.release(reader);
            cluster.wait_point(reader, "has tried");
            cluster.go_on(Who::Agent);
            cluster.release(reader);
            cluster.all_end();
        });
    }
}

/// The writer goes on.
fn fails(fabric: &Fabric, mut versions: Subscription<u8>) -> Outcome {
    let late = fabric.within(Duration::from_millis(30), || versions.next_version());
    // Where it is mapped, it may be had without the agent.
    matches_or_fail!(
        late.map(|version| version.version()),
        Err(_) | Ok(Version(1))
    );
    pause("has tried");
    for version in 2..=3 {
        same!(versions.next_version()?.version(), Version(version));
    }
    Ok(())
}

everywhere!(
    an_event_whose_version_cannot_be_had_is_taken,
    while_stopped(fails)
);

/// Handlers that write what they subscribe to, and what others subscribe to.
fn handled(fabric: &Fabric, unit: u32) -> Outcome {
    const LAST: u64 = 40;
    let dsm = Dsm::join(fabric)?;
    let count = u64::from(fabric.identity().units);
    let ball = dsm.alloc::<u64>("ball", 1)?;
    if unit == 0 {
        ball.put(&[0], 0)?;
    }
    for event in ball.subscribe_with_content(Policy::Every, Version::default())? {
        let event = event?;
        if event.tag == LAST {
            break;
        }
        if event.tag % count == u64::from(unit) {
            let next = event.tag + 1;
            same!(ball.put(&[next], next)?, Version(next + 1));
        }
    }
    same!(ball.read()?[0], LAST);
    Ok(())
}

everywhere!(handlers_write_what_they_subscribe_to, runs(3, handled));

fn selected(fabric: &Fabric, unit: u32) -> Outcome {
    const EACH: u64 = 20;
    let dsm = Dsm::join(fabric)?;
    let chunks: Vec<_> = (0..3)
        .map(|number| dsm.alloc::<u64>(&format!("chunk {number}"), 1))
        .collect::<Result<_, _>>()?;
    if unit > 0 {
        let own = &chunks[unit as usize - 1];
        for number in 1..=EACH {
            own.put(&[number], number)?;
        }
        return Ok(());
    }
    let deadline = fabric.deadline();
    let begin = |chunk: &samite_dsm::Chunk<u64>| chunk.subscribe(Policy::Every, Version(0));
    let mut all: Vec<_> = chunks.iter().map(begin).collect::<Result<_, _>>()?;
    let mut heard = [0; 3];
    while heard.iter().sum::<u64>() < 2 * EACH {
        let mut each: Vec<_> = all.iter_mut().collect();
        let which = Subscription::select(&mut each, deadline)?;
        let event = all[which].next_event()?;
        heard[which] += 1;
        same!(
            (event.version, event.tag),
            (Version(heard[which]), heard[which])
        );
    }
    same!(heard, [EACH, EACH, 0]);
    let mut none: [&mut Subscription<u64>; 0] = [];
    let nothing = Subscription::select(&mut none, Duration::ZERO);
    matches_or_fail!(nothing, Err(Error::NoEvent { .. }));
    let late = Subscription::select(&mut [&mut all[2]], Duration::ZERO);
    matches_or_fail!(late, Err(Error::NoEvent { .. }));
    Ok(())
}

everywhere!(several_subscriptions_are_waited_for, runs(3, selected));

/// A process has many subscriptions and computes for so long that its server gives it up: more
/// waits for it than a server keeps. When it goes on, it hears of all commits.
fn given_up(name: &str, mask: Mask) {
    const CHUNKS: u64 = 8;
    const EACH: u64 = 900;
    let body = |fabric: &Fabric, _: &[_]| -> Outcome {
        let dsm = Dsm::join(fabric)?;
        let chunks: Vec<_> = (0..CHUNKS)
            .map(|number| dsm.alloc::<u8>(&format!("chunk {number}"), 4096))
            .collect::<Result<_, _>>()?;
        if fabric.identity().unit == 0 {
            pause("ready");
            for version in 1..=EACH {
                for chunk in &chunks {
                    put(chunk, version)?;
                }
            }
            let begin = fabric.now();
            while dsm
                .overview(fabric.deadline())?
                .chunks
                .iter()
                .any(|one| one.subscriptions > 0)
            {
                let passed = fabric.now().saturating_sub(begin);
                check!(passed < fabric.deadline(), "it is not given up");
            }
            pause("written");
            return Ok(());
        }
        let policy = Policy::Lossless { high_water: 1000 };
        let begin = |chunk: &Chunk<u8>| chunk.subscribe_with_content(policy, Version::default());
        let mut all: Vec<_> = chunks.iter().map(begin).collect::<Result<_, _>>()?;
        pause("subscribed");
        for events in &mut all {
            for version in 1..=EACH {
                let event = events.next_event()?;
                same!((event.version.0, number(event.tag)), (version, version));
            }
            let last = events.chunk().snapshot()?;
            same!(last.version(), Version(EACH));
            is_whole!(events.chunk(), last)?;
        }
        Ok(())
    };
    served(2, mask).orchestrate(name, body, |cluster: &mut Cluster| {
        let (writer, subscriber) = (Who::Unit(0), Who::Unit(1));
        cluster.wait_point(writer, "ready");
        cluster.wait_point(subscriber, "subscribed");
        cluster.release(writer);
        cluster.wait_point(writer, "written");
        cluster.release(subscriber);
        cluster.release(writer);
        cluster.all_end();
    });
}

everywhere!(a_subscriber_that_is_given_up_goes_on, given_up);
