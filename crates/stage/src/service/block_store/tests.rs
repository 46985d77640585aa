use super::spill::PART;
use super::*;
use crate::protocol::{Handle, Lack, Peer, StreamId};
use rustix::process::{Resource, Rlimit, setrlimit};
use samite_fabric::{Config, Identity};
use samite_testkit::full_name;
use std::os::unix::fs::MetadataExt;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

const LARGE: u64 = 300 << 20;

pub(in crate::service) fn buffer(number: u64) -> BufferId {
    let stream = StreamId(1);
    BufferId { stream, number }
}

fn allocate(number: u64, bytes: u64) -> Order {
    Order::Allocate {
        buffer: buffer(number),
        bytes,
        writer: Peer(0),
    }
}

#[test]
fn a_large_buffer_grows_between_other_work() {
    let fabric = Fabric::alone(Identity::by_hand("block_store"), Config::default()).unwrap();
    let mut block_store = BlockStore::new(&fabric, Capacity::of_memory(4 * LARGE));
    let working = |parts| Report::Working {
        buffer: buffer(1),
        parts,
    };
    assert_eq!(block_store.obey(allocate(1, LARGE)), Some(working(1)));
    // Queued behind the first, though it is small.
    assert_eq!(block_store.obey(allocate(2, 4096)), None);
    let mut reports = Vec::new();
    let mut turns = 0;
    while block_store.is_busy() {
        reports.extend(block_store.work());
        turns += 1;
    }
    let held: Vec<_> = reports
        .iter()
        .filter_map(|report| match report {
            Report::Allocated { buffer, .. } => Some(buffer.number),
            _ => None,
        })
        .collect();
    assert_eq!(held, [1, 2]);
    assert!(turns > 3, "{turns} turns");
    assert_eq!(
        reports[..2],
        [working(2), working(3)],
        "it says that it gets on"
    );
    assert_eq!(block_store.figures().used, LARGE + 4096);
}

#[test]
fn what_is_freed_while_it_grows_is_given_back() {
    let fabric = Fabric::alone(Identity::by_hand("block_store"), Config::default()).unwrap();
    let mut block_store = BlockStore::new(&fabric, Capacity::of_memory(LARGE));
    for number in [1, 2] {
        let working = Report::Working {
            buffer: buffer(number),
            parts: 1,
        };
        // There is room for one only.
        assert_eq!(block_store.obey(allocate(number, LARGE)), Some(working));
        assert_eq!(block_store.figures().used, LARGE);
        block_store.obey(Order::Free {
            buffer: buffer(number),
        });
        assert_eq!(block_store.figures().used, 0);
    }
    assert_eq!(fabric.free_segments(), {
        let untouched = Fabric::alone(Identity::by_hand("untouched"), Config::default());
        untouched.unwrap().free_segments()
    });
}

pub(in crate::service) fn pattern(number: u64, bytes: u64) -> Vec<u8> {
    (0..bytes).map(|at| (at * 31 + number * 7) as u8).collect()
}

fn key_of(fabric: &Fabric, handle: Handle, bytes: u64) -> SegmentKey {
    SegmentKey {
        peer: fabric.me(),
        segment: handle.segment,
        incarnation: handle.incarnation,
        generation: handle.generation,
        bytes,
    }
}

/// Writes and commits a buffer as peer 0.
pub(in crate::service) fn commit(
    fabric: &Fabric,
    block_store: &mut BlockStore,
    number: u64,
    bytes: u64,
) {
    let Some(Report::Allocated { handle, .. }) = block_store.obey(allocate(number, bytes)) else {
        panic!("a small buffer is there at once");
    };
    let key = key_of(fabric, handle, bytes);
    let mut borrowed = fabric.borrow(key).unwrap().expect("it is mapped");
    borrowed
        .as_mut_slice()
        .copy_from_slice(&pattern(number, bytes));
    let buffer = buffer(number);
    assert_eq!(
        block_store.obey(Order::Seal { buffer }),
        None,
        "its writer has it"
    );
    assert!(block_store.is_waiting());
    drop(borrowed);
    assert_eq!(
        block_store.work(),
        [Report::Sealed { buffer }],
        "it is tried again"
    );
    assert!(!block_store.is_waiting());
}

/// Blocks the disk until the sender sends, or a time limit.
pub(in crate::service) fn stall(block_store: &mut BlockStore) -> std::sync::mpsc::SyncSender<()> {
    block_store.disk.stall()
}

/// Works until `done` returns a value.
fn until<T>(
    block_store: &mut BlockStore,
    mut done: impl FnMut(&mut BlockStore, Vec<Report>) -> Option<T>,
) -> T {
    loop {
        let reports = block_store.work();
        if let Some(value) = done(block_store, reports) {
            return value;
        }
        std::thread::yield_now();
    }
}

/// Returns the reports up to the one that ends the spilling of a buffer.
fn spilled(block_store: &mut BlockStore) -> Vec<Report> {
    let mut all = Vec::new();
    until(block_store, |_, reports| {
        all.extend(reports);
        let is_over = !matches!(all.last(), None | Some(Report::Working { .. }));
        is_over.then(|| std::mem::take(&mut all))
    })
}

/// Requests a part of a spilled buffer and returns the answer.
fn load(
    block_store: &mut BlockStore,
    number: u64,
    offset: u64,
    len: u64,
) -> Result<Vec<u8>, String> {
    let ask = BlockStoreRequest::Load(buffer(number), offset, len);
    if let Some(answer) = block_store.answer(Peer(3), number, ask) {
        return answer;
    }
    let (from, id, answer) = until(block_store, |block_store, _| block_store.answers().pop());
    assert_eq!((from, id), (Peer(3), number));
    answer
}

fn spill(block_store: &mut BlockStore, number: u64) {
    let buffer = buffer(number);
    assert_eq!(block_store.obey(Order::Spill { buffer }), None);
    let mut reports = spilled(block_store);
    assert_eq!(reports.pop(), Some(Report::Spilled { buffer }));
    let working = (1..).map(|parts| Report::Working { buffer, parts });
    assert!(
        working
            .zip(&reports)
            .all(|(working, report)| working == *report),
        "{reports:?}"
    );
}

pub(in crate::service) fn capacity(folder: &tempfile::TempDir) -> Capacity {
    Capacity {
        memory: 64 << 20,
        disk: 64 << 20,
        folder: folder.path().to_owned(),
    }
}

#[test]
fn only_its_writer_opens_a_buffer_and_only_while_it_is_lent() {
    let fabric = Fabric::alone(Identity::by_hand("block_store"), Config::default()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut block_store = BlockStore::new(&fabric, capacity(&folder));
    assert!(matches!(
        block_store.obey(allocate(1, 100)),
        Some(Report::Allocated { .. })
    ));
    assert!(block_store.open(Peer(7), buffer(1)).is_err(), "another's");
    block_store.open(Peer(0), buffer(1)).unwrap();
    commit(&fabric, &mut block_store, 2, 5000);
    assert!(block_store.open(Peer(0), buffer(2)).is_err(), "it is read");
    assert_eq!(block_store.obey(Order::Seal { buffer: buffer(2) }), None);
    spill(&mut block_store, 2);
    assert!(
        block_store.open(Peer(0), buffer(2)).is_err(),
        "it is on disk"
    );
    assert_eq!(block_store.obey(Order::Seal { buffer: buffer(2) }), None);
    assert_eq!(
        load(&mut block_store, 2, 0, 5000).unwrap(),
        pattern(2, 5000)
    );
    assert!(load(&mut block_store, 2, 0, LOAD + 1).is_err());
    assert_eq!(
        (block_store.figures().buffers, block_store.figures().files),
        (2, 1)
    );
}

#[test]
fn what_is_spilled_costs_one_descriptor() {
    const BUFFERS: u64 = 300;
    let fabric = Fabric::alone(Identity::by_hand("block_store"), Config::default()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut block_store = BlockStore::new(&fabric, capacity(&folder));
    for number in 0..BUFFERS {
        commit(&fabric, &mut block_store, number, 6000);
        spill(&mut block_store, number);
    }
    let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let targets = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let in_folder = targets.filter(|target| target.starts_with(folder.path()));
    assert_eq!(in_folder.count(), 1);
    for number in 0..BUFFERS {
        let part = load(&mut block_store, number, 100, 5900).unwrap();
        assert_eq!(part, pattern(number, 6000)[100..]);
        assert_eq!(
            block_store.obey(Order::Free {
                buffer: buffer(number)
            }),
            None
        );
    }
    assert_eq!(block_store.figures().files, 0);
}

#[test]
fn a_large_buffer_is_spilled_between_other_work_and_may_be_freed_meanwhile() {
    let fabric = Fabric::alone(Identity::by_hand("block_store"), Config::default()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut block_store = BlockStore::new(&fabric, capacity(&folder));
    commit(&fabric, &mut block_store, 1, 2 * PART + 1);
    assert_eq!(block_store.obey(Order::Spill { buffer: buffer(1) }), None);
    let working = Report::Working {
        buffer: buffer(1),
        parts: 1,
    };
    let first = until(&mut block_store, |_, mut reports| reports.pop());
    assert_eq!(first, working);
    assert_eq!(block_store.obey(Order::Free { buffer: buffer(1) }), None);
    // The part that was being written ends first.
    until(&mut block_store, |block_store, _| {
        (!block_store.disk.is_pending()).then_some(())
    });
    commit(&fabric, &mut block_store, 2, 2 * PART + 1);
    spill(&mut block_store, 2);
    let end = load(&mut block_store, 2, 2 * PART - 5, 6).unwrap();
    assert_eq!(end, pattern(2, 2 * PART + 1)[2 * PART as usize - 5..]);
}

/// Returns the number of blocks of the spill file.
fn blocks(folder: &tempfile::TempDir) -> u64 {
    let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let is_it = |entry: &std::fs::DirEntry| {
        std::fs::read_link(entry.path()).is_ok_and(|target| target.starts_with(folder.path()))
    };
    let mut files = open.filter(is_it);
    files
        .next()
        .map_or(0, |entry| std::fs::metadata(entry.path()).unwrap().blocks())
}

#[test]
fn what_is_freed_is_given_back_and_used_again() {
    const BYTES: u64 = 3 * 4096 - 5;
    let fabric = Fabric::alone(Identity::by_hand("block_store"), Config::default()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut block_store = BlockStore::new(&fabric, capacity(&folder));
    for number in 0..4 {
        commit(&fabric, &mut block_store, number, BYTES);
        spill(&mut block_store, number);
    }
    let full = blocks(&folder);
    block_store.obey(Order::Free { buffer: buffer(1) });
    // Queued behind the free.
    load(&mut block_store, 0, 0, 1).unwrap();
    assert!(blocks(&folder) < full, "the hole has its blocks still");
    commit(&fabric, &mut block_store, 9, BYTES);
    spill(&mut block_store, 9);
    assert_eq!(blocks(&folder), full, "the hole is used again");
    for number in [0, 2, 3, 9] {
        let all = load(&mut block_store, number, 0, BYTES).unwrap();
        assert_eq!(all, pattern(number, BYTES));
        let part = load(&mut block_store, number, 5000, 7).unwrap();
        assert_eq!(part, all[5000..5007]);
    }
    assert!(load(&mut block_store, 0, BYTES - 1, 2).is_err());
    assert!(load(&mut block_store, 0, u64::MAX, 2).is_err());
    for number in [0, 2, 3, 9] {
        let buffer = buffer(number);
        block_store.obey(Order::Free { buffer });
    }
    while block_store.disk.is_pending() {
        block_store.work();
    }
    assert_eq!(blocks(&folder), 0);
}

/// The reads that wait for a disk are bounded by their bytes. All accepted ones are answered in
/// order.
#[test]
fn what_is_asked_of_a_stuck_disk_is_bounded() {
    const LEN: u64 = 16 << 10;
    let fabric = Fabric::alone(Identity::by_hand("block_store"), Config::default()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut block_store = BlockStore::new(&fabric, capacity(&folder));
    commit(&fabric, &mut block_store, 1, LEN);
    spill(&mut block_store, 1);
    let go_on = stall(&mut block_store);
    let (gone, here) = (Peer(4), Peer(3));
    let mut taken = 0;
    let refused = loop {
        let from = if taken % 2 == 0 { gone } else { here };
        let ask = BlockStoreRequest::Load(buffer(1), 0, LEN);
        if let Some(answer) = block_store.answer(from, taken, ask) {
            break answer;
        }
        taken += 1;
    };
    let why = refused.unwrap_err();
    assert!(why.contains("ask again later"), "{why}");
    assert!((1000..100_000).contains(&taken), "{taken}");
    assert_eq!(
        (block_store.work(), block_store.answers().len()),
        (vec![], 0)
    );
    // Nothing is read for a peer that has gone while it waited.
    block_store.forget(gone);
    go_on.send(()).expect("it was stuck until now");
    let mut last = Vec::new();
    let all: Vec<u8> = pattern(1, LEN);
    until(&mut block_store, |block_store, _| {
        for (from, id, answer) in block_store.answers() {
            if from == here {
                last.push(id);
            }
            assert!(answer.as_ref() == Ok(&all), "{from}");
        }
        (!block_store.disk.is_pending()).then_some(())
    });
    let expected: Vec<u64> = (0..taken).filter(|number| number % 2 == 1).collect();
    assert_eq!(last, expected);
}

/// If the thread of the disk ends, its jobs and later ones are refused, and buffers in memory stay.
#[test]
fn without_the_thread_of_the_disk_all_that_needs_it_is_refused() {
    let fabric = Fabric::alone(Identity::by_hand("block_store"), Config::default()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut block_store = BlockStore::new(&fabric, capacity(&folder));
    for number in [1, 2, 3] {
        commit(&fabric, &mut block_store, number, 6000);
    }
    spill(&mut block_store, 1);
    block_store.disk.kill();
    for number in [2, 3] {
        let buffer = buffer(number);
        let said = block_store.obey(Order::Spill { buffer });
        let said = said.map_or_else(|| spilled(&mut block_store), |said| vec![said]);
        assert_eq!(said, [Report::SpillFailed { buffer }]);
        assert!(matches!(
            block_store.buffers[&buffer],
            BufferState::Reading(_)
        ));
        let why = load(&mut block_store, 1, 0, 1).unwrap_err();
        assert!(why.contains("has ended"), "{why}");
    }
    assert_eq!(block_store.figures().files, 1);
}

/// A stream whose writer commits a buffer that does not exist any more does not wait for it.
#[test]
fn a_buffer_that_is_not_there_counts_as_sealed() {
    let fabric = Fabric::alone(Identity::by_hand("block_store"), Config::default()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut block_store = BlockStore::new(&fabric, capacity(&folder));
    let buffer = buffer(1);
    let said = block_store.obey(Order::Seal { buffer });
    assert_eq!(said, Some(Report::Sealed { buffer }));
}

/// If the file size limit of the process is below the buffer, the spill fails, but the process
/// lives. (The test runs in its own process.)
#[test]
fn a_limit_of_file_sizes_refuses_a_spill() {
    const LIMITED: &str = "SAMITE_TEST_FILE_SIZES";
    if std::env::var(LIMITED).is_err() {
        let name = full_name(module_path!(), "a_limit_of_file_sizes_refuses_a_spill");
        let mut limited = std::process::Command::new(std::env::current_exe().unwrap());
        let limited = limited.args(["--exact", &name]).env(LIMITED, "yes");
        let ended = limited.output().unwrap();
        let said = String::from_utf8_lossy(&ended.stdout);
        return assert!(said.contains("1 passed"), "{ended:?}");
    }
    let fabric = Fabric::alone(Identity::by_hand("block_store"), Config::default()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut block_store = BlockStore::new(&fabric, capacity(&folder));
    commit(&fabric, &mut block_store, 1, 6000);
    let limit = Rlimit {
        current: Some(4096),
        maximum: None,
    };
    setrlimit(Resource::Fsize, limit).unwrap();
    let buffer = buffer(1);
    assert_eq!(block_store.obey(Order::Spill { buffer }), None);
    assert_eq!(spilled(&mut block_store), [Report::SpillFailed { buffer }]);
}

/// If the thread of the disk ends during a write, the spills that wait behind it fail at once.
#[test]
fn spills_that_fail_one_after_another_are_all_reported_at_once() {
    let fabric = Fabric::alone(Identity::by_hand("block_store"), Config::default()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut block_store = BlockStore::new(&fabric, capacity(&folder));
    let go_on = stall(&mut block_store);
    for number in [1, 2, 3] {
        commit(&fabric, &mut block_store, number, 6000);
        let buffer = buffer(number);
        assert_eq!(block_store.obey(Order::Spill { buffer }), None);
    }
    block_store.disk.kill();
    go_on.send(()).expect("it was stuck until now");
    while !block_store.disk.is_dead() {
        std::thread::yield_now();
    }
    let [first, second, third] = [1, 2, 3].map(buffer);
    let expected = [
        Report::Spilled { buffer: first },
        Report::SpillFailed { buffer: second },
        Report::SpillFailed { buffer: third },
    ];
    assert_eq!(block_store.work(), expected);
}

#[test]
fn memory_that_somebody_still_has_stays_used() {
    let fabric = Fabric::alone(Identity::by_hand("block_store"), Config::default()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut block_store = BlockStore::new(&fabric, capacity(&folder));
    commit(&fabric, &mut block_store, 1, 6000);
    let Some(BufferState::Reading(phased)) = block_store.buffers.get(&buffer(1)) else {
        panic!("it is committed");
    };
    let inside = fabric.attach(phased.key()).unwrap();
    assert_eq!(block_store.obey(Order::Free { buffer: buffer(1) }), None);
    assert!(!block_store.give_idle_back());
    assert_eq!(
        (block_store.figures().used, block_store.figures().free),
        (6000, 6000)
    );
    drop(inside);
    assert!(block_store.give_idle_back());
    assert_eq!(
        (block_store.figures().used, block_store.figures().free),
        (0, 0)
    );
}

/// Freed memory that is still in use counts as used: buffers are not allocated beyond the capacity.
#[test]
fn a_buffer_waits_for_memory_that_was_freed_and_is_still_had() {
    let fabric = Fabric::alone(Identity::by_hand("block_store"), Config::default()).unwrap();
    let mut block_store = BlockStore::new(&fabric, Capacity::of_memory(8000));
    commit(&fabric, &mut block_store, 1, 6000);
    let Some(BufferState::Reading(phased)) = block_store.buffers.get(&buffer(1)) else {
        panic!("it is committed");
    };
    let inside = fabric.attach(phased.key()).unwrap();
    assert_eq!(block_store.obey(Order::Free { buffer: buffer(1) }), None);
    for number in [2, 3] {
        let buffer = buffer(number);
        let full = Report::Full {
            buffer,
            had_by: None,
        };
        assert_eq!(block_store.obey(allocate(number, 5000)), Some(full));
    }
    assert_eq!(block_store.work(), []);
    assert_eq!(block_store.figures().used, 6000);
    assert!(
        block_store.is_waiting() && !block_store.is_busy(),
        "nothing to be done"
    );
    // A buffer that is given up meanwhile had no memory.
    assert_eq!(block_store.obey(Order::Free { buffer: buffer(2) }), None);
    assert_eq!(block_store.figures().used, 6000);
    drop(inside);
    let held = block_store.work();
    let is_held =
        |report: &Report| matches!(report, Report::Allocated { buffer, .. } if buffer.number == 3);
    assert!(held.len() == 1 && is_held(&held[0]), "{held:?}");
    assert_eq!(block_store.figures().used, 5000);
    assert!(!block_store.is_waiting());
    let never = block_store.obey(allocate(4, 8001));
    assert!(matches!(never, Some(Report::Refused { .. })), "{never:?}");
}

/// Another thread of the process allocates segments, but takes no number that the block store has
/// found for a buffer.
#[test]
fn another_thread_takes_numbers_meanwhile() {
    let fabric = Fabric::alone(Identity::by_hand("block_store"), Config::default()).unwrap();
    let mut block_store = BlockStore::new(&fabric, Capacity::of_memory(8000));
    let (has_begun, is_over) = (Barrier::new(2), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            has_begun.wait();
            while !is_over.load(Ordering::Relaxed) {
                drop(fabric.register(vec![0_u8]).unwrap());
            }
        });
        has_begun.wait();
        let mut refused = 0;
        for number in 0..3000 {
            // A different length each time, so that no memory is reused.
            let said = block_store.obey(allocate(number, 4096 + number));
            refused += u32::from(!matches!(said, Some(Report::Allocated { .. })));
            let buffer = buffer(number);
            block_store.obey(Order::Free { buffer });
        }
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(refused, 0);
    });
}

/// Memory that cannot be lent because a process is attached is not free before that process
/// releases it.
#[test]
fn memory_that_cannot_be_lent_stays_used() {
    let fabric = Fabric::alone(Identity::by_hand("block_store"), Config::default()).unwrap();
    let mut block_store = BlockStore::new(&fabric, Capacity::of_memory(8000));
    let phased = fabric.allocate_phased(9, 6000).unwrap();
    block_store.used += 6000;
    let inside = fabric.attach(phased.key()).unwrap();
    assert!(block_store.lend(buffer(1), phased, Peer(0)).is_err());
    assert_eq!(
        (block_store.figures().used, block_store.figures().free),
        (6000, 6000)
    );
    let full = Report::Full {
        buffer: buffer(2),
        had_by: None,
    };
    assert_eq!(block_store.obey(allocate(2, 5000)), Some(full));
    drop(inside);
    assert!(matches!(block_store.work()[..], [Report::Allocated { .. }]));
    assert_eq!(block_store.figures().used, 5000);
}

/// For memory that was freed while its writer had it, the coordinator is told the writer, so that a
/// waiting writer is not waited for.
#[test]
fn who_has_freed_memory_is_named() {
    let fabric = Fabric::alone(Identity::by_hand("block_store"), Config::default()).unwrap();
    let mut block_store = BlockStore::new(&fabric, Capacity::of_memory(8000));
    let Some(Report::Allocated { handle, .. }) = block_store.obey(allocate(1, 6000)) else {
        panic!("a small buffer is there at once");
    };
    let borrowed = fabric.borrow(key_of(&fabric, handle, 6000)).unwrap();
    block_store.obey(Order::Free { buffer: buffer(1) });
    let full = Report::Full {
        buffer: buffer(2),
        had_by: Some(Peer(0)),
    };
    assert_eq!(block_store.obey(allocate(2, 5000)), Some(full));
    drop(borrowed);
    assert!(matches!(block_store.work()[..], [Report::Allocated { .. }]));
}

#[test]
fn idle_memory_gives_its_numbers_to_buffers_of_other_lengths() {
    let fabric = Fabric::alone(Identity::by_hand("block_store"), Config::default()).unwrap();
    let mut block_store = BlockStore::new(&fabric, Capacity::of_memory(u64::MAX));
    let numbers = fabric
        .free_segments()
        .into_iter()
        .map(|word| word.count_ones());
    let numbers = u64::from(numbers.sum::<u32>());
    for number in 0..numbers {
        let held = block_store.obey(allocate(number, 64));
        assert!(
            matches!(held, Some(Report::Allocated { .. })),
            "{number} of {numbers}"
        );
    }
    let one_more = block_store.obey(allocate(numbers, 64));
    let lack = Lack::Numbers(fabric.free_segments().len() as u64 * 64);
    let buffer_of_none = buffer(numbers);
    assert_eq!(
        one_more,
        Some(Report::Refused {
            buffer: buffer_of_none,
            lack
        })
    );
    for number in 0..numbers {
        block_store.obey(Order::Free {
            buffer: buffer(number),
        });
    }
    let other = block_store.obey(allocate(numbers + 1, 128));
    assert!(matches!(other, Some(Report::Allocated { .. })), "{other:?}");
    assert_eq!(block_store.figures().used, 128);
}
