//! Errors of the disk, and files that cannot be read.

use super::*;
use std::sync::atomic::{AtomicBool, Ordering};

/// A file on a device that accepts all writes, and fails at the end, like a failing disk.
fn onto(device: &str, durability: Durability) -> (TempDir, StepFile) {
    let folder = TempDir::new().unwrap();
    let mut writer = StepFile::create(folder.path(), "field", 0, 1)
        .unwrap()
        .with_durability(durability);
    writer.onto(Path::new(device));
    (folder, writer)
}

#[test]
fn what_the_disk_refuses_at_the_end_is_an_error_of_the_end() {
    let doing = |result: Result<(), FileError>| match result {
        Err(FileError::Io { doing, .. }) => doing,
        other => panic!("{other:?}"),
    };
    // Nothing can be written any more: the index is lost.
    let (_folder, full) = onto("/dev/full", Durability::System);
    assert_eq!(doing(full.finish()), "write");
    // Everything is written, but cannot be synced to the disk.
    for durability in [Durability::Close, Durability::Step] {
        let (_folder, writer) = onto("/dev/null", durability);
        assert_eq!(doing(writer.finish()), "sync");
    }
    let (_folder, writer) = onto("/dev/null", Durability::System);
    writer.finish().unwrap();
}

#[test]
fn a_step_that_is_not_on_the_disk_is_not_written() {
    let region = Region::at(&[0], &[4]).unwrap();
    let layout = Layout {
        variables: vec![variable("u", Dtype::U8, &[4], &[region])],
    };
    let content = Content {
        layout: &layout,
        blocks: &[&[1, 2, 3, 4]],
        attributes: &[],
    };
    let (_folder, mut writer) = onto("/dev/null", Durability::Step);
    let refused = writer.append(0, content);
    assert!(
        matches!(refused, Err(FileError::Io { doing: "sync", .. })),
        "{refused:?}"
    );
    assert_eq!(writer.last(), None);
    let (_folder, mut writer) = onto("/dev/null", Durability::Close);
    writer.append(0, content).unwrap();
    assert_eq!(writer.last(), Some(0));
}

fn steps_and_end(path: &Path) -> (Vec<Step>, bool) {
    let archive = Archive::open(path.parent().unwrap()).unwrap();
    (archive.steps().to_vec(), archive.is_finished())
}

fn fails() -> std::io::Result<()> {
    Err(rustix::io::Errno::IO.into())
}

/// Returns a file with a step, on a disk that may fail.
fn on_disk(durability: Durability, disk: fn(&Path) -> std::io::Result<()>) -> (TempDir, StepFile) {
    let folder = TempDir::new().unwrap();
    let mut writer = StepFile::create(folder.path(), "field", 0, 1).unwrap();
    append(&mut writer, 0, 0, &[4], &[Region::at(&[0], &[4]).unwrap()]);
    writer.on_disk(disk);
    (folder, writer.with_durability(durability))
}

/// Readers see no end before everything else is on the disk; an end that they may have seen stays.
#[test]
fn an_end_follows_what_is_on_the_disk_and_stays() {
    let refuses_data: fn(&Path) -> _ = |path| {
        assert_eq!(
            steps_and_end(path),
            (vec![0], false),
            "it is told too early"
        );
        fails()
    };
    let refuses_the_end: fn(&Path) -> _ = |path| match steps_and_end(path).1 {
        true => fails(),
        false => Ok(()),
    };
    for (disk, is_ended) in [(refuses_data, false), (refuses_the_end, true)] {
        for durability in [Durability::Close, Durability::Step] {
            let (folder, writer) = on_disk(durability, disk);
            let path = file_of(folder.path(), 0);
            let refused = writer.finish();
            assert!(
                matches!(refused, Err(FileError::Io { doing: "sync", .. })),
                "{refused:?}"
            );
            assert_eq!(steps_and_end(&path), (vec![0], is_ended));
            // It is resumed, and ended by a disk that works.
            let again = StepFile::resume(folder.path(), "field", 0, 1).unwrap();
            again.finish().unwrap();
            assert_eq!(steps_and_end(&path), (vec![0], true));
        }
    }
}

/// No reader has seen a step that the disk refused; a step that was seen stays.
#[test]
fn a_step_that_was_seen_is_not_taken_back() {
    let region = Region::at(&[0], &[4]).unwrap();
    let layout = Layout {
        variables: vec![variable("u", Dtype::U8, &[4], &[region])],
    };
    let content = Content {
        layout: &layout,
        blocks: &[&[1, 2, 3, 4]],
        attributes: &[],
    };
    let refuses_data: fn(&Path) -> _ = |path| {
        assert_eq!(steps_and_end(path).0, [0], "it is seen too early");
        fails()
    };
    let refuses_the_record: fn(&Path) -> _ = |path| match steps_and_end(path).0.len() {
        1 => Ok(()),
        _ => fails(),
    };
    for (disk, is_there) in [(refuses_data, false), (refuses_the_record, true)] {
        let (folder, mut writer) = on_disk(Durability::Step, disk);
        let refused = writer.append(1, content);
        assert!(
            matches!(refused, Err(FileError::Io { doing: "sync", .. })),
            "{refused:?}"
        );
        assert_eq!(writer.last(), Some(u64::from(is_there)));
        let steps = steps_and_end(&file_of(folder.path(), 0)).0;
        assert_eq!(steps.len(), 1 + usize::from(is_there));
    }
}

/// The system reports once that it gave up bytes, and the next sync succeeds without them.
#[test]
fn a_sync_after_a_refused_one_is_refused() {
    static FAILS: AtomicBool = AtomicBool::new(true);
    for durability in [Durability::Step, Durability::System] {
        // ORDERING: one thread, here and below.
        FAILS.store(true, Ordering::Relaxed);
        let (folder, mut writer) =
            on_disk(durability, |_| match FAILS.swap(false, Ordering::Relaxed) {
                true => fails(),
                false => Ok(()),
            });
        let synced = [writer.sync(), writer.sync(), writer.finish()];
        for refused in synced {
            assert!(
                matches!(refused, Err(FileError::Io { doing: "sync", .. })),
                "{refused:?}"
            );
        }
        assert_eq!(steps_and_end(&file_of(folder.path(), 0)), (vec![0], false));
    }
}

/// The name of a file is part of its folder.
#[test]
fn a_file_whose_folder_cannot_be_synced_is_not_on_the_disk() {
    let folder = TempDir::new().unwrap();
    let inner = folder.path().join("inner");
    let mut writer = StepFile::create(&inner, "field", 0, 1).unwrap();
    fs::remove_dir_all(&inner).unwrap();
    let synced = writer.sync();
    assert!(
        matches!(&synced, Err(FileError::Io { path, .. }) if *path == inner),
        "{synced:?}"
    );
    // It could not be opened, as in a process with too many open files: nothing is lost.
    fs::create_dir(&inner).unwrap();
    writer.sync().unwrap();
}

/// A file that cannot be read may have any life; only the system knows.
#[test]
fn a_file_that_cannot_be_read_is_not_taken_for_none() {
    // Opening fails, as in a process with too many open files; or reading fails, as on a failing
    // disk.
    let loops = |path: &Path| std::os::unix::fs::symlink(path, path).unwrap();
    let is_a_folder = |path: &Path| fs::create_dir(path).unwrap();
    for spoil in [&loops as &dyn Fn(&Path), &is_a_folder] {
        let folder = TempDir::new().unwrap();
        let begin = || StepFile::begin(folder.path(), "field", 5, 0, 2);
        for life in 0..2 {
            begin().unwrap().finish().unwrap();
            let header = scan::header(&Archive::open(folder.path()).unwrap().scan_of(0).frames);
            assert_eq!(header.unwrap().unwrap().1.life, life);
        }
        spoil(&file_of(folder.path(), 1));
        let begun = begin().map(drop);
        assert!(matches!(begun, Err(FileError::Io { .. })), "{begun:?}");
    }
}

#[test]
fn many_ranks_need_few_descriptors() {
    let folder = TempDir::new().unwrap();
    for rank in 0..200 {
        drop(StepFile::begin(folder.path(), "field", 5, rank, 200).unwrap());
    }
    let open = || fs::read_dir("/proc/self/fd").unwrap().count();
    let files = folder::files_of(folder.path()).unwrap();
    let before = open();
    let mut seen = 0;
    for file in files {
        file.unwrap();
        seen += 1;
        // Other tests of this process open some, too.
        assert!(open() < before + 150);
    }
    assert_eq!(seen, 200);
    let before = open();
    let life = folder::life_of(folder.path(), Some(5)).unwrap();
    assert!(open() < before + 150);
    drop(life);
}
