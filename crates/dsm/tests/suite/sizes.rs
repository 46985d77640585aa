//! Chunks of all lengths, also of more bytes than a message can have.

use crate::{runs, served, servers};
use samite_dsm::{Chunk, Dsm, Version};
use samite_fabric::{Fabric, Mask};
use samite_testkit::pattern::{pattern, verify};
use samite_testkit::{Outcome, full_name, matches_or_fail, same};

/// Writes a chunk of that length in all ways; another unit reads each version.
fn written(fabric: &Fabric, unit: u32, length: u64, rounds: u64) -> Outcome {
    let dsm = Dsm::join(fabric)?;
    let chunk: Chunk<u8> = dsm.alloc("of any length", length)?;
    same!(chunk.len(), length);
    let content = |version: u64| pattern(version, length as usize);
    let check = |version: u64| -> Outcome {
        let read = chunk.read()?;
        same!((read.version(), read.tag()), (Version(version), version));
        same!(
            read.in_place(),
            length > 4096 && samite_testkit::maps_host(fabric)
        );
        verify(version, &read)?;
        verify(version, &chunk.snapshot()?)
    };
    for round in 0..rounds {
        for way in 1..=4 {
            let version = round * 4 + way;
            if unit == 0 {
                match way {
                    1 => _ = chunk.put(&content(version), version)?,
                    2 => {
                        let mut guard = chunk.write()?;
                        guard.copy_from_slice(&content(version));
                        guard.commit(version)?;
                    }
                    3 => {
                        let mut draft = chunk.draft()?;
                        draft.copy_from_slice(&content(version));
                        draft.put(version)?;
                    }
                    _ => {
                        // What is given up changes nothing.
                        drop(chunk.write()?);
                        drop(chunk.draft()?);
                        let mut guard = chunk.update()?;
                        verify(version - 1, &guard)?;
                        guard.copy_from_slice(&content(version));
                        guard.commit(version)?;
                    }
                }
                check(version)?;
            }
            dsm.barrier("written", 2)?;
            check(version)?;
            dsm.barrier("read", 2)?;
        }
    }
    Ok(())
}

everywhere!(
    of_one_byte,
    runs(2, |fabric, unit| written(fabric, unit, 1, 3))
);
everywhere!(of_none, runs(2, |fabric, unit| written(fabric, unit, 0, 3)));

/// Longer than a commit can bring, and shorter than a message.
fn of_33_mb(name: &str, mask: Mask) {
    let body = |fabric: &Fabric, _: &[_]| written(fabric, fabric.identity().unit, 33_000_001, 1);
    served(2, mask).budget(1 << 30).run(name, body);
}

everywhere!(of_millions_of_bytes, of_33_mb);

/// The same through servers that are not the home, one of which caches less.
fn through_servers(dsm: &Dsm, rank: u32) -> Outcome {
    const LENGTH: usize = 33_000_001;
    for home in ["gateway", "right"] {
        let chunk: Chunk<u8> = dsm.alloc(&format!("{home} long"), LENGTH as u64)?;
        for version in 1..=2 {
            if u64::from(rank) == version {
                let mut guard = chunk.write()?;
                guard.copy_from_slice(&pattern(version, LENGTH));
                guard.commit(version)?;
            }
            dsm.barrier("written", 4)?;
            if rank > 1 {
                let read = chunk.read()?;
                same!((read.version(), read.tag()), (Version(version), version));
                verify(version, &read)?;
            }
            dsm.barrier("read", 4)?;
        }
        if rank == 0 {
            chunk.free()?;
        }
    }
    Ok(())
}

everywhere!(
    of_millions_of_bytes_at_several_servers,
    servers::runs(through_servers)
);

/// Longer than a message.
fn of_65_mib(name: &str, mask: Mask) {
    const LENGTH: usize = (65 << 20) + 3;
    let body = |fabric: &Fabric, _: &[_]| -> Outcome {
        let dsm = Dsm::join(fabric)?;
        let chunk: Chunk<u8> = dsm.alloc("long", LENGTH as u64)?;
        if fabric.identity().unit == 0 {
            chunk.put(&pattern(1, LENGTH), 1)?;
            let mut guard = chunk.update()?;
            guard[LENGTH - 1] ^= 1;
            guard.commit(2)?;
        }
        dsm.barrier("written", 2)?;
        let read = chunk.read()?;
        same!(read.version(), Version(2));
        let mut content = read.to_vec();
        content[LENGTH - 1] ^= 1;
        verify(1, &content)
    };
    served(2, mask).budget(1 << 30).run(name, body);
}

everywhere!(longer_than_a_message, of_65_mib);

/// A chunk of more than 2 GiB. Its content is written and read in place where that is possible.
fn above_two_gib(name: &str, mask: Mask) {
    const LENGTH: u64 = (2 << 30) + 5;
    const STRIDE: usize = 4093;
    let body = |fabric: &Fabric, _: &[_]| -> Outcome {
        let dsm = Dsm::join(fabric)?;
        let chunk: Chunk<u8> = dsm.alloc("very long", LENGTH)?;
        let mark = |at: usize| (at / STRIDE % 251) as u8;
        if fabric.identity().unit == 0 {
            let mut guard = chunk.write()?;
            same!(guard.len() as u64, LENGTH);
            for at in (0..guard.len()).step_by(STRIDE) {
                guard[at] = mark(at);
            }
            guard[LENGTH as usize - 1] = 77;
            same!(guard.commit(1)?, Version(1));
        }
        dsm.barrier("written", 2)?;
        if fabric.identity().unit == 1 {
            let read = chunk.read()?;
            same!(read.len() as u64, LENGTH);
            let wrong = (0..read.len()).step_by(STRIDE);
            let wrong = wrong.filter(|at| *at + 1 < read.len() && read[*at] != mark(*at));
            same!(wrong.count(), 0);
            same!(read[LENGTH as usize - 1], 77);
        }
        Ok(())
    };
    let units = served(2, mask).budget(5 << 30);
    units
        .config(|config| config.deadline *= 6)
        .timeout(std::time::Duration::from_secs(300))
        .run(name, body);
}

#[test]
#[ignore = "needs 3 GiB of memory"]
fn above_two_gib_mapped() {
    above_two_gib(
        &full_name(module_path!(), "above_two_gib_mapped"),
        Mask::default(),
    );
}

/// The writer and the reader have copies of it.
#[test]
#[ignore = "needs 7 GiB of memory"]
fn above_two_gib_by_messages() {
    let name = full_name(module_path!(), "above_two_gib_by_messages");
    above_two_gib(&name, samite_testkit::MESSAGES_ONLY);
}

/// A process that dies while it puts pieces into the memory of the server, and one whose guard is
/// revoked meanwhile, change nothing.
#[test]
fn pieces_of_what_is_not_committed_are_never_seen() {
    const LENGTH: usize = 40 << 20;
    let body = |fabric: &Fabric, _: &[_]| -> Outcome {
        let dsm = Dsm::join(fabric)?;
        let chunk: Chunk<u8> = dsm.alloc("long", LENGTH as u64)?;
        if fabric.identity().unit == 0 {
            chunk.put(&pattern(1, LENGTH), 1)?;
            samite_testkit::pause("here");
            for version in 2.. {
                chunk.put(&pattern(version, LENGTH), version)?;
            }
            return Ok(());
        }
        samite_testkit::pause("ready");
        let mut commits = chunk.subscribe(samite_dsm::Policy::Latest, Version(2))?;
        commits.next_event()?;
        samite_testkit::pause("dies");
        let read = chunk.read()?;
        samite_testkit::check!(read.version() >= Version(3));
        verify(read.tag(), &read)?;
        drop(read);
        let version = chunk.put(&pattern(1000, LENGTH), 1000)?;
        let read = chunk.read()?;
        same!((read.version(), read.tag()), (version, 1000));
        verify(1000, &read)?;
        drop(read);
        let guard = chunk.write()?;
        dsm.lookup::<u8>("long")?.free()?;
        matches_or_fail!(
            guard.commit(1),
            Err(samite_dsm::Error::Freed { .. } | samite_dsm::Error::Fenced { .. })
        );
        Ok(())
    };
    use samite_testkit::Who;
    let name = full_name(
        module_path!(),
        "pieces_of_what_is_not_committed_are_never_seen",
    );
    let units = served(2, samite_testkit::MESSAGES_ONLY).budget(1 << 30);
    units.orchestrate(&name, body, |cluster| {
        cluster.wait_point(Who::Unit(0), "here");
        cluster.wait_point(Who::Unit(1), "ready");
        cluster.release(Who::Unit(0));
        cluster.release(Who::Unit(1));
        cluster.wait_point(Who::Unit(1), "dies");
        cluster.kill(Who::Unit(0));
        cluster.release(Who::Unit(1));
        cluster.all_end();
    });
}
