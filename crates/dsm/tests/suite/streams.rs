//! Subscriptions as streams, and with handlers.

use crate::subscriptions::while_stopped;
use crate::{runs, servers};
use futures::executor::block_on;
use futures::stream::{StreamExt, TryStreamExt, select};
use samite_dsm::{Carry, Chunk, Dsm, Error, Handlers, Policy, Subscription, Version};
use samite_fabric::Fabric;
use samite_testkit::{Outcome, check, matches_or_fail, pause, same};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const COMMITS: u64 = 200;

/// Unit 0 writes; the others await the commits to two chunks, in one stream.
fn awaited(fabric: &Fabric, unit: u32) -> Outcome {
    let dsm = Dsm::join(fabric)?;
    let short: Chunk<u64> = dsm.alloc("short", 1)?;
    let long: Chunk<u64> = dsm.alloc("long", 5000)?;
    if unit == 0 {
        for version in 1..=COMMITS {
            short.put(&[version], version)?;
            long.put(&[version; 5000], version)?;
        }
        return Ok(());
    }
    let await_all = || -> Outcome {
        let of_short = short.subscribe_carrying(Policy::Every, Carry::Notice, Version(0))?;
        let of_long = long.subscribe_carrying(Policy::Every, Carry::Prefetch, Version(0))?;
        let both = select(
            of_short.into_events().map_ok(|event| (0, event)),
            of_long.into_events().map_ok(|event| (1, event)),
        );
        let mut last = [Version(0); 2];
        let mut both = both.take(2 * COMMITS as usize);
        block_on(async {
            while let Some(item) = both.next().await {
                let (which, event): (usize, _) = item?;
                same!(event.version, last[which].next());
                same!(event.tag, event.version.0);
                last[which] = event.version;
            }
            Outcome::Ok(())
        })?;
        same!(last, [Version(COMMITS); 2]);
        Ok(())
    };
    if unit == 1 {
        return await_all();
    }
    // Another thread of the program delivers the events.
    let has_ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let deliver = || -> samite_dsm::Result<()> {
            while !has_ended.load(Ordering::Acquire) {
                dsm.deliver(Duration::from_secs(1), || {
                    !has_ended.load(Ordering::Acquire)
                })?;
            }
            Ok(())
        };
        let delivers = scope.spawn(deliver);
        let awaited = await_all();
        has_ended.store(true, Ordering::Release);
        match delivers.join() {
            Ok(delivered) => delivered?,
            Err(panic) => std::panic::resume_unwind(panic),
        }
        awaited
    })
}

everywhere!(events_are_awaited, runs(3, awaited));

/// The thread that delivers leaves while streams wait for it: they look themselves.
fn left(fabric: &Fabric, unit: u32) -> Outcome {
    let dsm = Dsm::join(fabric)?;
    let chunk: Chunk<u64> = dsm.alloc("chunk", 1)?;
    let ready: Chunk<u64> = dsm.alloc("ready", 1)?;
    if unit == 0 {
        let mut is_ready = ready.subscribe(Policy::Latest, Version(0))?;
        is_ready.next_event()?;
        chunk.put(&[5], 5)?;
        return Ok(());
    }
    let mut events = chunk.subscribe(Policy::Every, Version(0))?.into_events();
    std::thread::scope(|scope| {
        let awaits = scope.spawn(|| block_on(events.next()));
        dsm.deliver(Duration::from_millis(20), || true)?;
        ready.put(&[1], 1)?;
        match awaits.join() {
            Ok(Some(event)) => same!(event?.tag, 5),
            other => check!(false, "{other:?}"),
        }
        Ok(())
    })
}

everywhere!(streams_look_themselves_when_nobody_delivers, runs(2, left));

/// Lossless versions with their content; missed events; a chunk that is freed; a stream that is
/// dropped.
fn ended(fabric: &Fabric, unit: u32) -> Outcome {
    const MANY: u64 = 1500;
    let dsm = Dsm::join(fabric)?;
    let chunk: Chunk<u64> = dsm.alloc(&format!("of {unit}"), 1000)?;
    let policy = Policy::Lossless { high_water: 4 };
    let versions = chunk.subscribe_carrying(policy, Carry::Content, Version(0))?;
    let mut versions = versions.into_versions();
    for version in 1..=20 {
        chunk.put(&[version; 1000], version)?;
        let got = block_on(versions.try_next())?;
        let got = got.ok_or(Error::Nonsense("no version".to_owned()))?;
        same!((got.version(), got[999]), (Version(version), version));
    }
    // Dropped, it keeps no writer waiting.
    drop(versions);
    let mut events = chunk.subscribe(Policy::Every, Version(0))?.into_events();
    let small: Chunk<u64> = dsm.alloc(&format!("missed of {unit}"), 1)?;
    let mut missing = small.subscribe(Policy::Every, Version(0))?.into_events();
    for version in 1..=MANY {
        small.put(&[version], version)?;
    }
    let (mut missed, mut heard) = (0, 0);
    while missed + heard < MANY {
        match block_on(missing.next()) {
            Some(Ok(event)) => {
                heard += 1;
                same!(event.version.0, missed + heard);
            }
            Some(Err(Error::Lagged { missed: more, .. })) => missed += more,
            other => check!(false, "{other:?}"),
        }
    }
    check!(missed > 0, "the server remembers {MANY} commits");
    for version in 1..=20 {
        let event = block_on(events.try_next())?;
        same!(event.map(|event| event.version), Some(Version(version)));
    }
    chunk.free()?;
    let freed = block_on(events.next());
    matches_or_fail!(freed, Some(Err(Error::Freed { .. })));
    check!(block_on(events.next()).is_none());
    Ok(())
}

everywhere!(streams_end_with_their_chunk, runs(2, ended));

/// Handlers for chunks of several types, which write what they subscribe to.
fn handled(fabric: &Fabric, unit: u32) -> Outcome {
    const LAST: u64 = 60;
    let dsm = Dsm::join(fabric)?;
    let count = u64::from(fabric.identity().units);
    let ball: Chunk<u64> = dsm.alloc("ball", 1)?;
    let field: Chunk<f32> = dsm.alloc("field", 3000)?;
    let (mut balls, mut fields, mut failure) = (0, 0, None);
    let mut handlers = Handlers::new();
    let policy = Policy::Lossless { high_water: 1 };
    handlers.on_commit(ball.subscribe(policy, Version(0))?, |event| {
        let mut handle = || -> samite_dsm::Result<bool> {
            let tag = event.clone()?.tag;
            balls += 1;
            if tag < LAST && tag % count == u64::from(unit) {
                ball.put(&[tag + 1], tag + 1)?;
                field.put(&[tag as f32; 3000], tag)?;
            }
            Ok(tag < LAST)
        };
        match handle() {
            Ok(true) => ControlFlow::Continue(()),
            Ok(false) => ControlFlow::Break(()),
            Err(error) => {
                failure = Some(error);
                ControlFlow::Break(())
            }
        }
    });
    let policy = Policy::Lossless { high_water: 8 };
    handlers.on_version(
        field.subscribe_carrying(policy, Carry::Content, Version(0))?,
        |version| {
            let Ok(version) = version else {
                return ControlFlow::Break(());
            };
            assert!(
                version
                    .iter()
                    .all(|element| *element == version.tag() as f32)
            );
            fields += 1;
            match fields < LAST {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        },
    );
    same!(handlers.len(), 2);
    dsm.barrier("begin", count)?;
    if unit == 0 {
        ball.put(&[0], 0)?;
    }
    handlers.run()?;
    check!(handlers.is_empty());
    drop(handlers);
    if let Some(failure) = failure {
        return Err(failure.into());
    }
    same!((balls, fields), (LAST + 1, LAST));
    // Nothing comes: the error names a chunk. A chunk that is freed ends its handler.
    let own: Chunk<u8> = dsm.alloc(&format!("of {unit}"), 1)?;
    let mut ends = 0;
    let mut handlers = Handlers::new();
    handlers.on_commit(own.subscribe(Policy::Every, Version(0))?, |event| {
        ends += usize::from(matches!(event, Err(Error::Freed { .. })));
        ControlFlow::Continue(())
    });
    let none = handlers.handle_next(Duration::ZERO);
    matches_or_fail!(none, Err(Error::NoEvent { .. }));
    own.free()?;
    handlers.run()?;
    check!(handlers.is_empty());
    drop(handlers);
    same!(ends, 1);
    // So does one whose events have come, but not their versions.
    let gone: Chunk<u64> = dsm.alloc(&format!("gone, of {unit}"), 1000)?;
    let mut ends = Vec::new();
    let mut handlers = Handlers::new();
    let versions = gone.subscribe_carrying(Policy::Every, Carry::Notice, Version(0))?;
    handlers.on_version(versions, |version| {
        ends.push(version.err());
        ControlFlow::Continue(())
    });
    for version in 1..=3 {
        gone.put(&[version; 1000], version)?;
    }
    gone.free()?;
    handlers.run()?;
    drop(handlers);
    matches_or_fail!(ends[..], [Some(Error::Freed { .. })]);
    Ok(())
}

everywhere!(handlers_are_called_for_each_commit, runs(3, handled));

/// A handler goes on after the error of one version.
fn fails_once(fabric: &Fabric, versions: Subscription<u8>) -> Outcome {
    let mut came = Vec::new();
    let mut handlers = Handlers::new();
    handlers.on_version(versions, |version| {
        came.push(version.map(|version| version.version()));
        match came.last() {
            Some(Ok(Version(3))) => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    });
    let deadline = fabric.deadline();
    fabric.within(Duration::from_millis(30), || handlers.handle_next(deadline))?;
    pause("has tried");
    handlers.run()?;
    drop(handlers);
    // Where it is mapped, it may be had without the agent.
    matches_or_fail!(
        came[..],
        [Err(_) | Ok(Version(1)), Ok(Version(2)), Ok(Version(3))]
    );
    Ok(())
}

everywhere!(a_handler_goes_on_after_an_error, while_stopped(fails_once));

/// The home of a chunk dies: its streams and handlers hear of that, and those of other homes go on.
fn home_dies(dsm: &Dsm, rank: u32) -> Outcome {
    let lost: Chunk<u64> = dsm.alloc("right lost", 1)?;
    let other: Chunk<u64> = dsm.alloc("left other", 1)?;
    let mut events = lost.subscribe(Policy::Every, Version(0))?.into_events();
    let mut plain = lost.subscribe(Policy::Every, Version(0))?;
    let mut alive = other.subscribe(Policy::Every, Version(0))?;
    let (mut ends, mut heard) = (0, 0);
    let mut handlers = Handlers::new();
    handlers.on_commit(other.subscribe(Policy::Every, Version(0))?, |event| {
        heard += u64::from(event.is_ok());
        match heard {
            4 => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    });
    handlers.on_commit(lost.subscribe(Policy::Every, Version(0))?, |event| {
        ends += u32::from(matches!(event, Err(Error::Lost { .. })));
        ControlFlow::Continue(())
    });
    lost.put(&[1], 1)?;
    pause("here");
    let mut await_end = || loop {
        match block_on(events.next()) {
            Some(Ok(_)) => {}
            end => break end,
        }
    };
    // A thread that delivers wakes the stream for its end, too.
    let has_ended = &AtomicBool::new(false);
    let end = match rank % 2 {
        0 => await_end(),
        _ => std::thread::scope(|scope| {
            let is_wanted = move || !has_ended.load(Ordering::Acquire);
            let delivers = scope.spawn(move || dsm.deliver(Duration::from_secs(30), is_wanted));
            let end = await_end();
            has_ended.store(true, Ordering::Release);
            check!(delivers.join().is_ok_and(|delivered| delivered.is_ok()));
            Outcome::Ok(end)
        })?,
    };
    matches_or_fail!(end, Some(Err(Error::Lost { .. })));
    check!(block_on(events.next()).is_none());
    let end = loop {
        match plain.next_event() {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    matches_or_fail!(end, Error::Lost { .. });
    other.put(&[2], 2)?;
    for _ in 0..4 {
        same!(alive.next_event()?.tag, 2);
    }
    handlers.run()?;
    drop(handlers);
    same!((ends, heard), (1, 4));
    Ok(())
}

everywhere!(
    streams_end_with_the_home_of_their_chunk,
    servers::without(1, false, home_dies)
);
