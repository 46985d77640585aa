//! Folders that are reused: runs, lives, locks; files that are damaged in the middle, or forged.

use super::*;
use crate::file::claim::Turn;
use crate::file::frame::{ALIGN, Frames, Head, Kind};
use crate::protocol::Fault;
use std::os::unix::fs::FileExt;

fn begin(folder: &Path, run: u64, rank: u32, ranks: u32) -> StepFile {
    StepFile::begin(folder, "field", run, rank, ranks).unwrap()
}

fn put(writer: &mut StepFile, step: Step, rank: u32) {
    let (shape, regions) = parts_of(step, rank);
    append(writer, step, rank, &shape, &regions);
}

/// Writes a whole run of two ranks.
fn whole_run(folder: &Path, run: u64, steps: Step) {
    for rank in 0..RANKS {
        let mut writer = begin(folder, run, rank, RANKS);
        (0..steps).for_each(|step| put(&mut writer, step, rank));
        writer.finish().unwrap();
    }
}

#[test]
fn ranks_of_two_runs_are_not_mixed() {
    let folder = TempDir::new().unwrap();
    let folder = folder.path();
    whole_run(folder, 11, 3);
    let mut old = Archive::open(folder).unwrap();
    assert!(matches!(
        Archive::open_run(folder, 22),
        Err(FileError::NotAStream { .. })
    ));
    // Rank 1 has not restarted yet.
    let mut first = begin(folder, 22, 0, RANKS);
    assert_eq!(first.last(), None);
    put(&mut first, 0, 0);
    put(&mut first, 1, 0);
    let mut new = Archive::open_run(folder, 22).unwrap();
    for archive in [&new, &Archive::open(folder).unwrap()] {
        assert!(archive.steps().is_empty() && !archive.is_finished());
    }
    assert_eq!((new.run(), new.behind()), (22, Some((1, None))));
    let mut second = begin(folder, 22, 1, RANKS);
    put(&mut second, 0, 1);
    new.refresh().unwrap();
    assert_eq!(new.steps(), [0]);
    assert_eq!(new.behind(), Some((1, Some(1))));
    is_right(&new, 0);
    // Readers of the old run continue.
    old.refresh().unwrap();
    assert_eq!((old.run(), old.steps()), (11, &[0, 1, 2][..]));
    is_right(&old, 2);
}

#[test]
fn a_run_with_fewer_ranks_removes_the_others() {
    let folder = TempDir::new().unwrap();
    let folder = folder.path();
    for rank in 0..4 {
        begin(folder, 11, rank, 4).finish().unwrap();
    }
    let mut second = begin(folder, 22, 1, RANKS);
    put(&mut second, 0, 1);
    assert_eq!(Archive::open_run(folder, 22).unwrap().ranks(), RANKS);
    assert!(file_of(folder, 2).exists());
    let mut first = begin(folder, 22, 0, RANKS);
    put(&mut first, 0, 0);
    assert!(!file_of(folder, 2).exists() && !file_of(folder, 3).exists());
    is_right(&Archive::open(folder).unwrap(), 0);
}

/// A rank of another job that recreates its file at the same moment holds the right to claim it:
/// its file is not removed.
#[test]
fn a_file_that_another_job_begins_is_not_removed() {
    let folder = TempDir::new().unwrap();
    let folder = folder.path();
    for rank in 0..2 {
        begin(folder, 11, rank, 2).finish().unwrap();
    }
    let turn = Turn::take(folder, 1).unwrap();
    drop(begin(folder, 22, 0, 1));
    assert!(file_of(folder, 1).exists());
    drop(turn);
    drop(begin(folder, 33, 0, 1));
    assert!(!file_of(folder, 1).exists());
}

#[test]
fn only_an_unended_file_of_the_same_run_is_continued() {
    let folder = TempDir::new().unwrap();
    let folder = folder.path();
    let mut writer = begin(folder, 11, 0, 1);
    put(&mut writer, 0, 0);
    drop(writer);
    let mut writer = begin(folder, 11, 0, 1);
    assert_eq!(writer.last(), Some(0), "a restart");
    put(&mut writer, 1, 0);
    drop(writer);
    let writer = begin(folder, 22, 0, 1);
    assert_eq!(writer.last(), None, "another run");
    writer.finish().unwrap();
    let writer = begin(folder, 22, 0, 1);
    assert_eq!(writer.last(), None, "ended in order");
    drop(writer);
    // A damaged file of another run does not matter.
    let mut bytes = fs::read(file_of(folder, 0)).unwrap();
    bytes[ALIGN as usize] ^= 1;
    fs::write(file_of(folder, 0), bytes).unwrap();
    assert_eq!(begin(folder, 33, 0, 1).last(), None);
}

/// One run writes a stream to its end twice: rank 0 is ahead of rank 1.
#[test]
fn lives_of_a_run_are_not_mixed() {
    let folder = TempDir::new().unwrap();
    let folder = folder.path();
    whole_run(folder, 11, 2);
    // Rank 1 died in the second life, rank 0 wrote it to its end.
    let mut first = begin(folder, 11, 0, RANKS);
    put(&mut first, 0, 0);
    let mut archive = Archive::open_run(folder, 11).unwrap();
    assert!(archive.steps().is_empty());
    first.finish().unwrap();
    let mut second = begin(folder, 11, 1, RANKS);
    put(&mut second, 0, 1);
    drop(second);
    archive.refresh().unwrap();
    assert_eq!(archive.steps(), [0]);
    // The third life: rank 0 restarts, so rank 1 does, too.
    put(&mut begin(folder, 11, 0, RANKS), 0, 0);
    let second = begin(folder, 11, 1, RANKS);
    assert_eq!(second.last(), None);
    assert!(Archive::open(folder).unwrap().steps().is_empty());
}

/// One run writes a stream to its end, and again with another number of ranks, whichever begins
/// first: the files of the two are never taken for one.
#[test]
fn lives_with_other_numbers_of_ranks_are_not_mixed() {
    let folder = TempDir::new().unwrap();
    let folder = folder.path();
    for (ranks, order) in [
        (2, &[0, 1][..]),
        (4, &[2, 0, 1, 3]),
        (2, &[1, 0]),
        (4, &[3, 2, 1, 0]),
    ] {
        let begun = order
            .iter()
            .map(|rank| (*rank, begin(folder, 11, *rank, ranks)));
        for (rank, mut writer) in begun.collect::<Vec<_>>() {
            let own = Region::at(&[u64::from(rank)], &[1]).unwrap();
            append(&mut writer, 0, rank, &[u64::from(ranks)], &[own]);
            writer.finish().unwrap();
        }
        let archive = Archive::open_run(folder, 11).unwrap();
        assert_eq!((archive.ranks(), archive.steps()), (ranks, &[0][..]));
        let whole = Region::whole(&[u64::from(ranks)]).unwrap();
        let read: Vec<f64> = archive.step(0).unwrap().read("u", &whole).unwrap();
        assert_eq!(read, array(0, &[u64::from(ranks)]));
    }
}

#[test]
fn two_writers_of_a_rank_are_refused() {
    let folder = TempDir::new().unwrap();
    let folder = folder.path();
    let mut writer = begin(folder, 11, 0, 1);
    put(&mut writer, 0, 0);
    for run in [11, 22] {
        let second = StepFile::begin(folder, "field", run, 0, 1).unwrap_err();
        assert!(
            matches!(&second, FileError::InUse { rank: 0, path } if *path == file_of(folder, 0)),
            "{second}"
        );
    }
    assert!(matches!(
        StepFile::create(folder, "field", 0, 1),
        Err(FileError::InUse { .. })
    ));
    put(&mut writer, 1, 0);
    writer.finish().unwrap();
    assert_eq!(Archive::open(folder).unwrap().steps(), [0, 1]);
    drop(begin(folder, 22, 0, 1));
    for (rank, ranks) in [(1, 1), (0, 0), (7, 3)] {
        let beyond = StepFile::begin(folder, "field", 11, rank, ranks).unwrap_err();
        let FileError::Layout(fault) = beyond else {
            panic!("{beyond}")
        };
        assert!(matches!(*fault, Fault::RankBeyond { .. }), "{fault}");
    }
}

/// A damaged byte in the middle loses no step after it: the file is left as it is.
#[test]
fn damage_in_the_middle_is_no_end() {
    let folder = TempDir::new().unwrap();
    let folder = folder.path();
    drop(write(folder, 0..4));
    let path = file_of(folder, 0);
    let whole = fs::read(&path).unwrap();
    let records = Archive::open(folder).unwrap().scan_of(0).records.clone();
    for (step, record) in &records[..3] {
        // Its content, its head.
        for at in [record + ALIGN, *record] {
            let mut bytes = whole.clone();
            bytes[at as usize] ^= 1;
            fs::write(&path, &bytes).unwrap();
            let refused = StepFile::resume(folder, "field", 0, RANKS).unwrap_err();
            assert!(
                matches!(refused, FileError::Corrupt { .. }),
                "step {step}: {refused}"
            );
            assert!(fs::read(&path).unwrap() == bytes, "step {step} was cut off");
        }
    }
    // Nothing follows the last record: it may be incomplete.
    let mut bytes = whole.clone();
    bytes[(records[3].1 + ALIGN) as usize] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let writer = StepFile::resume(folder, "field", 0, RANKS).unwrap();
    assert_eq!(writer.last(), Some(2));
}

#[test]
fn blocks_one_above_another_are_refused() {
    let folder = TempDir::new().unwrap();
    let at = |from: u64| Region::at(&[from], &[4]).unwrap();
    let layout = |blocks: &[Region]| Layout {
        variables: vec![variable("u", Dtype::U8, &[12], blocks)],
    };
    let put = |writer: &mut StepFile, step, blocks: &[Region]| {
        let layout = layout(blocks);
        writer.append(
            step,
            Content {
                layout: &layout,
                blocks: &vec![&[7; 4][..]; blocks.len()],
                attributes: &[],
            },
        )
    };
    let overlap = |error: FileError| match error {
        FileError::Layout(fault) => match *fault {
            Fault::Overlap { one, other, .. } => (one, other),
            other => panic!("{other}"),
        },
        other => panic!("{other}"),
    };
    let mut first = StepFile::create(folder.path(), "field", 0, 2).unwrap();
    let mut second = StepFile::create(folder.path(), "field", 1, 2).unwrap();
    assert_eq!(
        overlap(put(&mut second, 0, &[at(0), at(3)]).unwrap_err()),
        (1, 1)
    );
    let outside = put(&mut second, 0, &[at(9)]).unwrap_err();
    assert!(matches!(outside, FileError::Layout(_)), "{outside}");
    put(&mut first, 0, &[at(0)]).unwrap();
    put(&mut second, 0, &[at(4), at(8)]).unwrap();
    put(&mut first, 2, &[at(0)]).unwrap();
    put(&mut second, 2, &[at(2)]).unwrap();
    let archive = Archive::open(folder.path()).unwrap();
    archive.step(0).unwrap().check().unwrap();
    assert_eq!(overlap(archive.step(2).unwrap_err()), (0, 1));
    // No rank has step 1, and step 3 may come.
    assert!(archive.is_past(1) && !archive.is_past(3));
    first.finish().unwrap();
    second.finish().unwrap();
    assert!(Archive::open(folder.path()).unwrap().is_past(3));
}

/// Ranks that have as many steps as each other, but different ones, are not waited for once they
/// are gone.
#[test]
fn ranks_with_different_steps_wait_for_the_one_that_is_behind() {
    for (steps, behind) in [
        (&[&[0, 1][..], &[0, 2]][..], (0, 2)),
        (&[&[0, 2], &[0, 1]], (1, 2)),
        // Step 1 can be complete, and step 2 cannot be before it.
        (&[&[0, 1], &[0], &[0, 1, 2]], (1, 1)),
        // Step 3 is passed by the first rank, and step 5 by none.
        (&[&[0, 1, 5], &[0, 3]], (1, 2)),
    ] {
        let folder = TempDir::new().unwrap();
        let folder = folder.path();
        let ranks = steps.len() as u32;
        let write = |(rank, steps): (u32, &&[Step])| {
            let mut writer = begin(folder, 11, rank, ranks);
            let own = Region::at(&[u64::from(rank)], &[1]).unwrap();
            let own = std::slice::from_ref(&own);
            let shape = [u64::from(ranks)];
            let put = |step: &Step| append(&mut writer, *step, rank, &shape, own);
            steps.iter().for_each(put);
            writer
        };
        let writers: Vec<StepFile> = (0..).zip(steps).map(write).collect();
        let archive = Archive::open(folder).unwrap();
        assert_eq!(archive.steps(), [0]);
        assert_eq!(archive.behind(), Some((behind.0, Some(behind.1))));
        assert_eq!(archive.writers().unwrap(), Writers::Alive);
        drop(writers);
        assert_eq!(archive.writers().unwrap(), Writers::Gone(behind.0));
        for rank in 0..ranks {
            begin(folder, 11, rank, ranks).finish().unwrap();
        }
        let ended = Archive::open(folder).unwrap();
        assert_eq!(
            (ended.ended_early(), ended.behind()),
            (Some(behind.0), None)
        );
    }
}

/// Intact frames with impossible numbers.
#[test]
fn made_up_files_are_refused() {
    let folder = TempDir::new().unwrap();
    let folder = folder.path();
    let path = file_of(folder, 0);
    let frames = |ranks| {
        let file = fs::File::options();
        let file = { file }
            .create(true)
            .truncate(true)
            .write(true)
            .read(true)
            .open(&path);
        let frames = Frames::new(file.unwrap(), &path);
        let header = Header {
            stream: "field".into(),
            rank: 0,
            ranks,
            run: 0,
            life: 0,
        };
        let end = frames.write(Kind::Header, 0, 9, 0, &header).unwrap();
        (frames, end)
    };
    for ranks in [0, u32::MAX, (1 << 20) + 1] {
        drop(frames(ranks));
        let refused = Archive::open(folder).unwrap_err();
        let is_refused = matches!(
            refused,
            FileError::Corrupt { .. } | FileError::Stranger { .. }
        );
        assert!(is_refused, "{ranks} ranks: {refused}");
    }
    // The maximum number of ranks, and one of them exists: nothing is allocated for the others.
    drop(frames(1 << 20));
    assert_eq!(Archive::open(folder).unwrap().behind(), Some((1, None)));
    // A block of 2^62 bytes, in a frame that claims them.
    let shape = [1 << 59];
    let (file, layout_at) = frames(1);
    let layout = Layout {
        variables: vec![variable(
            "u",
            Dtype::F64,
            &shape,
            &[Region::whole(&shape).unwrap()],
        )],
    };
    let data = file.write(Kind::Layout, 0, 9, layout_at, &layout).unwrap();
    for length in [1 << 62, u64::MAX - 4096, 64] {
        let head = Head {
            kind: Kind::Data,
            step: 0,
            length,
            checksum: 0,
            id: 9,
            at: data,
        };
        let raw = fs::File::options().write(true).open(&path).unwrap();
        raw.write_all_at(&head.bytes(), data).unwrap();
        let record = Record {
            layout: layout_at,
            data,
            checksums: Vec::new(),
            attributes: Vec::new(),
        };
        let record_at = data + 2 * ALIGN;
        let at = file.write(Kind::Record, 0, 9, record_at, &record).unwrap();
        let records = vec![(0, record_at)];
        let end = file.write(Kind::Index, 0, 9, at, &Index { records });
        file.write(Kind::End, 0, 9, end.unwrap(), &at).unwrap();
        let archive = Archive::open(folder).unwrap();
        assert_eq!(archive.steps(), [0]);
        let refused = archive.step(0).unwrap_err();
        assert!(matches!(refused, FileError::Corrupt { .. }), "{refused}");
    }
}

/// Readers count steps from the next one on, so there must be one.
#[test]
fn the_last_number_is_no_step() {
    let folder = TempDir::new().unwrap();
    let layout = Layout::default();
    let content = Content {
        layout: &layout,
        blocks: &[],
        attributes: &[],
    };
    let mut writer = StepFile::create(folder.path(), "field", 0, 1).unwrap();
    let refused = writer.append(Step::MAX, content);
    assert!(
        matches!(refused, Err(FileError::Order { last: None, .. })),
        "{refused:?}"
    );
    writer.append(Step::MAX - 1, content).unwrap();
    // A file that has it nevertheless, without an end and with one.
    for is_finished in [false, true] {
        let frames = writer.frames();
        let record = Record {
            layout: 0,
            data: 0,
            checksums: Vec::new(),
            attributes: Vec::new(),
        };
        let at = frames.length().unwrap();
        let (id, step) = (frames.head(0).unwrap().unwrap().id, Step::MAX);
        let end = frames.write(Kind::Record, step, id, at, &record).unwrap();
        if is_finished {
            let records = vec![(step, at)];
            let index = frames.write(Kind::Index, 0, id, end, &Index { records });
            frames
                .write(Kind::End, 0, id, index.unwrap(), &end)
                .unwrap();
        }
        let refused = Archive::open(folder.path()).unwrap_err();
        assert!(matches!(refused, FileError::Corrupt { .. }), "{refused}");
        frames.cut(at).unwrap();
    }
}

/// A frame is at most as long as a message, except for the index: it may decode to much more than
/// its length.
#[test]
fn frames_longer_than_a_message_are_neither_written_nor_read() {
    let folder = TempDir::new().unwrap();
    let mut writer = StepFile::create(folder.path(), "field", 0, 1).unwrap();
    let layout = Layout::default();
    let numbers = vec![0.5; crate::protocol::LONGEST / 8];
    let content = |attributes| Content {
        layout: &layout,
        blocks: &[],
        attributes,
    };
    let long = [("long".to_owned(), Attribute::Reals(numbers))];
    let refused = writer.append(0, content(&long));
    let refused = refused.unwrap_err();
    assert!(matches!(refused, FileError::Io { doing: "write", .. }));
    let most = format!("at most {} can be read", crate::protocol::LONGEST);
    assert!(refused.to_string().contains(&most), "{refused}");
    writer.append(0, content(&[])).unwrap();
    let frames = writer.frames();
    let record = Record {
        layout: 0,
        data: 0,
        checksums: Vec::new(),
        attributes: long.to_vec(),
    };
    let record = crate::protocol::encode(&record);
    let head = Head {
        kind: Kind::Record,
        step: 1,
        length: record.len() as u64,
        checksum: xxhash_rust::xxh3::xxh3_64(&record),
        id: frames.head(0).unwrap().unwrap().id,
        at: frames.length().unwrap(),
    };
    frames.put(head.at, &head.bytes()).unwrap();
    frames.put(head.content(), &record).unwrap();
    frames.cut(head.end().unwrap()).unwrap();
    assert_eq!(Archive::open(folder.path()).unwrap().steps(), [0]);
}
