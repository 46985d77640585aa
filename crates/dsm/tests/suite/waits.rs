//! Waits that miss their deadlines say who keeps them waiting.

use crate::served;
use samite_dsm::{Chunk, Dsm, Error, Mode, Op, Policy, Version};
use samite_fabric::{Fabric, Mask, PeerId};
use samite_testkit::{Cluster, Outcome, Who, check, matches_or_fail, pause, same};
use std::time::Duration;

const SHORT: Duration = Duration::from_millis(300);

/// Runs unit 0, which goes on when unit 1 has ended.
fn beside(first: fn(&Dsm) -> Outcome, second: fn(&Fabric, &Dsm) -> Outcome) -> impl Fn(&str, Mask) {
    move |name, mask| {
        let body = |fabric: &Fabric, _: &[PeerId]| {
            let dsm = Dsm::join(fabric)?;
            if fabric.identity().unit == 0 {
                return first(&dsm);
            }
            pause("ready");
            fabric.within(SHORT, || second(fabric, &dsm))
        };
        served(2, mask).orchestrate(name, body, |cluster: &mut Cluster| {
            cluster.wait_point(Who::Unit(0), "here");
            cluster.wait_point(Who::Unit(1), "ready");
            cluster.release(Who::Unit(1));
            cluster.wait_gone(Who::Unit(1));
            cluster.release(Who::Unit(0));
            cluster.all_end();
        });
    }
}

fn chunk(dsm: &Dsm) -> Outcome<Chunk<u64>> {
    Ok(dsm.alloc("shared", 8)?)
}

fn writes(dsm: &Dsm) -> Outcome {
    let chunk = chunk(dsm)?;
    let guard = chunk.update()?;
    let lock = dsm.lock("lock")?;
    pause("here");
    drop((guard, lock));
    Ok(())
}

/// Checks that an error names the process that writes.
fn names_the_writer<T>(result: Result<T, Error>, of: &str) -> Outcome {
    let Err(error) = result else {
        check!(false, "unit.0 has it");
        return Ok(());
    };
    let said = error.to_string();
    check!(said.contains("unit.0 writes it"), "{said}");
    check!(said.contains(&format!("\"{of}\"")), "{said}");
    Ok(())
}

fn is_told_who_writes(fabric: &Fabric, dsm: &Dsm) -> Outcome {
    let shared = chunk(dsm)?;
    names_the_writer(shared.read(), "shared")?;
    names_the_writer(shared.write(), "shared")?;
    names_the_writer(shared.put(&[1; 8], 1), "shared")?;
    names_the_writer(shared.delegate(0, Op::Add(1), 1), "shared")?;
    names_the_writer(dsm.lock("lock"), "lock")?;
    let mut events = shared.subscribe(Policy::Every, Version::default())?;
    names_the_writer(events.next_event(), "shared")?;
    // One that only looks does not ask.
    matches_or_fail!(
        events.next_within(Duration::ZERO),
        Err(Error::NoEvent { holders, last: None, .. }) if holders.is_empty()
    );
    // What the server says of it for people.
    let overview = dsm.overview(fabric.deadline())?;
    let figures = overview.chunks.iter().find(|one| one.name == "shared");
    let Some(figures) = figures else {
        check!(false, "{overview:?}");
        return Ok(());
    };
    let writer = figures
        .writer
        .and_then(|who| fabric.name_of(who.peer, None));
    same!(writer.as_deref(), Some("unit.0"));
    same!((figures.bytes, figures.version), (64, Version(0)));
    same!((figures.subscriptions, figures.queue), (1, 0));
    same!(figures.owner, Some(figures.home));
    same!(overview.waits.len(), 0);
    Ok(())
}

everywhere!(errors_name_the_writer, beside(writes, is_told_who_writes));

fn reads(dsm: &Dsm) -> Outcome {
    let chunk = chunk(dsm)?;
    chunk.put(&[1; 8], 1)?;
    drop(chunk.take()?);
    let read = chunk.read()?;
    pause("here");
    drop(read);
    Ok(())
}

fn is_told_who_reads(_: &Fabric, dsm: &Dsm) -> Outcome {
    let shared = chunk(dsm)?;
    matches_or_fail!(
        shared.put(&[2; 8], 2),
        Err(Error::Late { holders, .. }) if holders.len() == 1 && holders[0].1 == Mode::Read
    );
    // Nothing is left to take, which is nobody's fault but that of those that do not write.
    let Err(error) = shared.take() else {
        check!(false, "it was taken");
        return Ok(());
    };
    let said = error.to_string();
    check!(said.contains("unit.0 reads it"), "{said}");
    let free = dsm.alloc::<u64>("free", 1)?;
    let said = free.take().err().map(|error| error.to_string());
    let sentence = "nobody committed a version that is left to take";
    check!(
        said.as_ref().is_some_and(|said| said.contains(sentence)),
        "{said:?}"
    );
    let mut events = shared.subscribe(Policy::Every, Version(1))?;
    let said = events.next_event().err().map(|error| error.to_string());
    let sentence = "unit.0 has committed last";
    check!(
        said.as_ref().is_some_and(|said| said.contains(sentence)),
        "{said:?}"
    );
    Ok(())
}

everywhere!(errors_name_the_reader, beside(reads, is_told_who_reads));

fn meets_once(dsm: &Dsm) -> Outcome {
    dsm.barrier("noon", 2)?;
    pause("here");
    Ok(())
}

fn comes_alone(fabric: &Fabric, dsm: &Dsm) -> Outcome {
    let _ = fabric;
    matches_or_fail!(
        dsm.barrier("noon", 2),
        Err(Error::Missing { here, absent, .. })
            if here.is_empty() && absent.len() == 1 && absent[0].name() == Some("unit.0")
    );
    Ok(())
}

/// The barrier is passed once by both; then one of them comes again alone.
#[test]
fn a_barrier_names_who_is_absent() {
    let name = samite_testkit::full_name(module_path!(), "a_barrier_names_who_is_absent");
    let body = |fabric: &Fabric, _: &[PeerId]| {
        let dsm = Dsm::join(fabric)?;
        meets_once(&dsm)?;
        match fabric.identity().unit {
            0 => Ok(()),
            _ => fabric.within(SHORT, || comes_alone(fabric, &dsm)),
        }
    };
    served(2, Mask::default()).orchestrate(&name, body, |cluster: &mut Cluster| {
        cluster.wait_all("here");
        cluster.release(Who::Unit(1));
        cluster.wait_gone(Who::Unit(1));
        cluster.release(Who::Unit(0));
        cluster.all_end();
    });
}
