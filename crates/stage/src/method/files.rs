//! The method `file`: the same program writes its steps to files and reads them from there.
//!
//! A stream is a folder of [`crate::file`] below [`super::Settings::folder`]. No messages are sent:
//! a writer does not wait for its readers, and readers poll the files until there is a step.

use super::Settings;
use super::run::run_of;
use crate::client::Client;
use crate::clock::Clock;
use crate::contents::{BlockAt, Contents, Indexed, Variable};
use crate::file::{
    Archive, Content, Durability, FileError, StepFile, StepRecords, StoredStep, Writers, check_rank,
};
use crate::protocol::{
    Attribute, EndOfStream, Failure, Fault, Interest, Layout, LayoutHash, Policy,
    Reader as Options, Start, Step,
};
use crate::reader::{Bytes, Given, Taken};
use crate::{Error, Region, Result};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

/// How often files are polled, at first and at last.
const LOOK: (Duration, Duration) = (Duration::from_micros(200), Duration::from_millis(20));

/// How often a waiting reader checks whether the writers are alive.
const LOOK_FOR_WRITERS: Duration = Duration::from_millis(40);

/// Returns the folder of a stream: its name, with the bytes of characters replaced that are not for
/// folder names. Two streams never have the same.
fn folder_of(folder: &Path, stream: &str) -> PathBuf {
    let plain = |letter: char| letter.is_alphanumeric() || "-_.+".contains(letter);
    let mut name = String::new();
    for letter in stream.chars() {
        match letter {
            letter if plain(letter) && !(letter == '.' && name.is_empty()) => name.push(letter),
            other => {
                for byte in other.encode_utf8(&mut [0; 4]).bytes() {
                    name += &format!("%{byte:02x}");
                }
            }
        }
    }
    if name.is_empty() {
        name.push('%');
    }
    folder.join(name)
}

fn wrong(stream: &str) -> impl Fn(FileError) -> Error + '_ {
    move |error| match error {
        FileError::Layout(fault) => (*fault).into(),
        error => Error::File {
            stream: stream.to_owned(),
            why: error.to_string(),
        },
    }
}

/// The file of one rank, for writing. Only [`close`](Self::close) ends it: otherwise, readers must
/// not assume that it is complete.
pub(crate) struct FileWriting {
    pub(crate) stream: String,
    file: StepFile,
    pub(crate) next: Step,
}

impl FileWriting {
    /// Continues after the last complete step of a file of this run that was not ended, or else
    /// begins a new one.
    pub(crate) fn open(
        client: &Client,
        (folder, durability): (&Path, Durability),
        stream: &str,
        (program, (rank, ranks)): (&str, (u32, u32)),
    ) -> Result<Self> {
        check_rank(program, rank, ranks)?;
        let folder = folder_of(folder, stream);
        let run = run_of(client)?;
        let file = StepFile::begin(&folder, stream, run, rank, ranks).map_err(wrong(stream))?;
        let file = file.with_durability(durability);
        Ok(FileWriting {
            stream: stream.to_owned(),
            next: file.last().map_or(0, |last| last + 1),
            file,
        })
    }

    /// Writes the next step: blocks in the order of the layout.
    pub(crate) fn append(
        &mut self,
        layout: &Layout,
        blocks: &[&[u8]],
        attributes: &[(String, Attribute)],
    ) -> Result<()> {
        let content = Content {
            layout,
            blocks,
            attributes,
        };
        let written = self.file.append(self.next, content);
        // Even if the disk failed afterwards: readers may have seen it.
        if self.file.last() == Some(self.next) {
            self.next += 1;
        }
        written.map_err(wrong(&self.stream))
    }

    /// Ends the file, so that readers know that nothing follows.
    pub(crate) fn close(self) -> Result<()> {
        self.file.finish().map_err(wrong(&self.stream))
    }
}

/// The files of a stream, for reading.
pub(crate) struct FileReading {
    client: Arc<Client>,
    stream: String,
    archive: Arc<RwLock<Archive>>,
    policy: Policy,
    only: Option<Interest>,
    /// How long a rank that is gone may take to return.
    lease: Duration,
    timeout: Option<Duration>,
    next: Step,
}

/// The result of a wait.
enum Found {
    Step(Step),
    End(EndOfStream),
}

/// The bytes of a step.
pub(crate) struct StoredBytes {
    stream: String,
    archive: Arc<RwLock<Archive>>,
    /// The contents of its records, which are not read again for each box.
    told: Arc<StepRecords>,
}

impl FileReading {
    /// Waits for the files to appear. A program that is not alone in its job may have started
    /// together with the writers, so it takes only the files of its own run. A program that is
    /// alone also takes others, if there are none of its own run.
    pub(crate) fn open(
        client: Arc<Client>,
        settings: &Settings,
        stream: &str,
        options: &Options,
    ) -> Result<Self> {
        check_rank(&options.group, options.rank, options.size)?;
        let folder = folder_of(&settings.folder, stream);
        let run = run_of(&client)?;
        let is_alone = client.fabric.identity().units <= options.size;
        let deadline = client.fabric.deadline();
        // Polls until there are files, or the deadline has passed.
        let archive = look(&client, |waited| {
            let own = there(Archive::open_run(&folder, run), stream)?;
            let found = match own {
                None if is_alone => there(Archive::open(&folder), stream)?,
                own => own,
            };
            Ok((found.is_some() || waited >= deadline).then_some(found))
        })?;
        let Some(archive) = archive else {
            let stream = stream.to_owned();
            return Err(match Archive::open(&folder) {
                Ok(_) => Error::OtherRun { stream, folder },
                Err(_) => Fault::NoStream { stream, open: None }.into(),
            });
        };
        let next = match options.start {
            Start::Earliest => 0,
            Start::Latest => archive.steps().last().copied().unwrap_or(0),
            Start::Step(step) => step,
        };
        Ok(FileReading {
            client,
            stream: stream.to_owned(),
            archive: Arc::new(RwLock::new(archive)),
            policy: options.policy,
            only: options.only.clone(),
            lease: Duration::from_millis(options.lease),
            timeout: settings.timeout,
            next,
        })
    }

    /// Returns the next step by the policy: files drop nothing, so all policies except `Latest` and
    /// `Every` take every step that contains some of the requested box.
    pub(crate) fn next_step(&mut self) -> Result<Taken> {
        loop {
            let (next, policy) = (self.next, self.policy);
            let taken = self.wait(|archive| {
                let steps = archive.steps().iter().copied();
                let mut wanted = steps.filter(|step| *step >= next);
                Ok(match policy {
                    Policy::Latest => wanted.next_back(),
                    Policy::Every(n) => wanted.find(|step| step.is_multiple_of(n.max(1))),
                    _ => wanted.next(),
                })
            })?;
            let Taken::Step(step) = &taken else {
                return Ok(taken);
            };
            self.next = step.number + 1;
            let only = self.only.as_ref();
            if only.is_none_or(|only| step.contents.touches(only)) {
                return Ok(taken);
            }
        }
    }

    pub(crate) fn at(&mut self, step: Step) -> Result<Taken> {
        self.wait(|archive| match archive.steps().binary_search(&step) {
            Ok(_) => Ok(Some(step)),
            // There is a later one, and no rank will write it any more.
            Err(at) if at < archive.steps().len() && archive.is_past(step) => {
                let (stream, oldest) = (self.stream.clone(), archive.steps().first().copied());
                Err(Error::from(Fault::Gone {
                    stream,
                    step,
                    oldest,
                }))
            }
            Err(_) => Ok(None),
        })
    }

    /// Polls until `choose` finds a step or fails, or no more can come. Ranks that have their files
    /// open may take any time. A rank that is gone may return until its lease ends. If that is
    /// unknown, the deadline applies.
    fn wait(&self, choose: impl Fn(&Archive) -> Result<Option<Step>>) -> Result<Taken> {
        let mut next_look = LOOK_FOR_WRITERS;
        let mut gone: Option<(u32, Duration)> = None;
        let found = look(&self.client, |waited| {
            let mut archive = written(&self.archive);
            let known = choose(&archive)?;
            if known.is_none() || self.policy == Policy::Latest {
                archive.refresh().map_err(wrong(&self.stream))?;
            }
            let early = archive.ended_early();
            match choose(&archive)? {
                Some(step) => return Ok(Some(Found::Step(step))),
                None if early.is_some() => {
                    let (rank, how) = (early.unwrap_or_default(), Failure::ClosedEarly);
                    let end = EndOfStream::WriterFailed { rank, how };
                    return Ok(Some(Found::End(end)));
                }
                None if archive.is_finished() => return Ok(Some(Found::End(EndOfStream::Closed))),
                None if self.timeout.is_some_and(|timeout| waited >= timeout) => {
                    drop(archive);
                    return Err(self.late());
                }
                None if waited < next_look => return Ok(None),
                None => next_look = waited + LOOK_FOR_WRITERS,
            }
            let writers = archive.writers().map_err(wrong(&self.stream))?;
            drop(archive);
            match (writers, gone) {
                (Writers::Gone(rank), Some((before, since))) if rank == before => {
                    // The files were polled again after the writer was seen to be gone.
                    let how = Failure::GaveUp;
                    let end = Found::End(EndOfStream::WriterFailed { rank, how });
                    return Ok((waited - since >= self.lease).then_some(end));
                }
                (Writers::Gone(rank), _) => gone = Some((rank, waited)),
                (Writers::Alive, _) => gone = None,
                (Writers::Unknown, _) if waited >= self.client.fabric.deadline() => {
                    return Err(self.late());
                }
                (Writers::Unknown, _) => {}
            }
            Ok(None)
        })?;
        match found {
            Found::Step(step) => Ok(Taken::Step(self.hold(step)?)),
            Found::End(end) => Ok(Taken::End(end)),
        }
    }

    /// Returns why no step came in time.
    fn late(&self) -> Error {
        let archive = looked_at(&self.archive);
        let stream = self.stream.clone();
        let committed = archive.steps().len() as u64;
        match archive.behind() {
            Some((rank, written)) => Error::RankBehind {
                stream,
                rank,
                ranks: archive.ranks(),
                written,
                committed,
            },
            None => Fault::NoStep {
                stream,
                committed,
                whom: "its writers".to_owned(),
            }
            .into(),
        }
    }

    fn hold(&self, number: Step) -> Result<Given> {
        let archive = looked_at(&self.archive);
        let stored = archive.step(number).map_err(wrong(&self.stream))?;
        // Files have no slots: `packed` is the offset in the file of the rank.
        let indexed = stored.variables().iter().map(|variable| {
            let blocks = variable.blocks.iter().map(|block| BlockAt {
                region: block.region.clone(),
                rank: block.rank,
                slot: 0,
                number: 0,
                packed: block.at,
            });
            let info = Variable {
                name: variable.name.clone(),
                dtype: variable.dtype,
                shape: variable.shape.clone(),
                attributes: variable.attributes.clone(),
            };
            Indexed::new(info, blocks.collect())
        });
        let contents = Contents {
            hash: LayoutHash(0),
            ranks: archive.ranks(),
            variables: indexed.collect::<Result<_>>()?,
        };
        Ok(Given {
            stream: self.stream.clone(),
            number,
            contents: Arc::new(contents),
            attributes: stored.attributes().to_vec(),
            bytes: Bytes::Stored(StoredBytes {
                stream: self.stream.clone(),
                archive: self.archive.clone(),
                told: stored.told(),
            }),
        })
    }
}

impl StoredBytes {
    /// Copies a box, dense and row-major, to `into`.
    pub(crate) fn copy(
        &self,
        step: Step,
        variable: &Indexed,
        region: &Region,
        into: &mut [u8],
    ) -> Result<()> {
        let archive = looked_at(&self.archive);
        let stored = StoredStep::known(&archive, self.told.clone());
        match stored.read_into(&variable.info.name, region, into) {
            Err(FileError::Hole { .. }) => Err(variable.hole(step, region)),
            result => result.map_err(wrong(&self.stream)),
        }
    }
}

/// Returns `None` if there is no file yet, or none with a complete header.
fn there(archive: Result<Archive, FileError>, stream: &str) -> Result<Option<Archive>> {
    use std::io::ErrorKind::NotFound;
    match archive {
        Ok(archive) => Ok(Some(archive)),
        Err(FileError::Io { source, .. }) if source.kind() == NotFound => Ok(None),
        Err(FileError::NotAStream { .. }) => Ok(None),
        Err(error) => Err(wrong(stream)(error)),
    }
}

/// Locks the records of a stream for reading; another thread may update them.
fn looked_at(archive: &RwLock<Archive>) -> RwLockReadGuard<'_, Archive> {
    archive.read().unwrap_or_else(PoisonError::into_inner)
}

fn written(archive: &RwLock<Archive>) -> RwLockWriteGuard<'_, Archive> {
    archive.write().unwrap_or_else(PoisonError::into_inner)
}

/// Repeats `ask`, with the time that it has waited, until there is an answer. Makes progress
/// meanwhile.
fn look<T>(client: &Client, mut ask: impl FnMut(Duration) -> Result<Option<T>>) -> Result<T> {
    let mut clock = Clock::new(client.fabric.now());
    let mut pause = LOOK.0;
    loop {
        if let Some(answer) = ask(clock.look(client.fabric.now()))? {
            return Ok(answer);
        }
        client.fabric.progress();
        std::thread::sleep(pause);
        pause = (pause * 2).min(LOOK.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dtype;
    use crate::protocol::{Block, Variable as Written};

    /// Only `close` ends a file: not an error, a panic, or a drop.
    #[test]
    fn a_file_is_ended_by_close_alone() {
        let folder = tempfile::tempdir().unwrap();
        let write = |blocks: &[u64], panics: bool| {
            let block = |from: &u64| Block {
                region: Region::at(&[*from], &[4]).unwrap(),
                slot: 0,
            };
            let layout = Layout {
                variables: vec![Written {
                    name: "u".into(),
                    dtype: Dtype::U8,
                    shape: [8].as_slice().into(),
                    attributes: Vec::new(),
                    blocks: blocks.iter().map(block).collect(),
                }],
            };
            let mut writing = FileWriting {
                stream: "field".into(),
                file: StepFile::create(folder.path(), "field", 0, 1).unwrap(),
                next: 0,
            };
            let bytes = vec![&[1; 4][..]; blocks.len()];
            let result = writing.append(&layout, &bytes, &[]);
            assert!(!panics, "as it is wanted");
            result.map(|()| writing)
        };
        let is_ended = || Archive::open(folder.path()).unwrap().is_finished();
        write(&[0, 4], false).unwrap().close().unwrap();
        assert!(is_ended());
        drop(write(&[0, 4], false).unwrap());
        assert!(!is_ended());
        let refused = write(&[0, 3], false).map(drop);
        assert!(matches!(refused, Err(Error::Fault(Fault::Overlap { .. }))));
        assert!(!is_ended());
        let panicked = std::panic::catch_unwind(|| write(&[0, 4], true).map(drop));
        assert!(panicked.is_err() && !is_ended());
        write(&[0, 4], false).unwrap().close().unwrap();
        assert!(is_ended());
    }

    /// The records of all ranks are read when the step is taken, and not for each box of it.
    #[test]
    fn boxes_are_read_without_a_look_at_the_records() {
        let folder = tempfile::tempdir().unwrap();
        let region = Region::at(&[0], &[8]).unwrap();
        let layout = Layout {
            variables: vec![Written {
                name: "u".into(),
                dtype: Dtype::U8,
                shape: [8].as_slice().into(),
                attributes: Vec::new(),
                blocks: vec![Block {
                    region: region.clone(),
                    slot: 0,
                }],
            }],
        };
        let mut file = StepFile::create(folder.path(), "field", 0, 1).unwrap();
        let content = Content {
            layout: &layout,
            blocks: &[&[0, 1, 2, 3, 4, 5, 6, 7]],
            attributes: &[],
        };
        file.append(0, content).unwrap();
        let archive = Archive::open(folder.path()).unwrap();
        let told = archive.step(0).unwrap().told();
        let bytes = StoredBytes {
            stream: "field".into(),
            archive: Arc::new(RwLock::new(archive)),
            told,
        };
        // Everything but the data is overwritten: reading it again would fail.
        let path = folder.path().join("rank-0.samite");
        let mut text = std::fs::read(&path).unwrap();
        let data = text
            .windows(8)
            .position(|some| some == [0, 1, 2, 3, 4, 5, 6, 7]);
        let data = data.unwrap();
        text[..data].fill(0xff);
        text[data + 8..].fill(0xff);
        std::fs::write(&path, text).unwrap();
        let info = Variable {
            name: "u".into(),
            dtype: Dtype::U8,
            shape: [8].as_slice().into(),
            attributes: Vec::new(),
        };
        let indexed = Indexed::new(info, Vec::new()).unwrap();
        let (part, mut into) = (Region::at(&[2], &[3]).unwrap(), [0; 3]);
        bytes.copy(0, &indexed, &part, &mut into).unwrap();
        assert_eq!(into, [2, 3, 4]);
    }

    #[test]
    fn names_of_streams_are_names_of_folders() {
        let name = |stream| folder_of(Path::new("x"), stream);
        assert_eq!(name("field-2.b"), Path::new("x/field-2.b"));
        assert_eq!(name("../a/b"), Path::new("x/%2e.%2fa%2fb"));
        assert_ne!(name("a/b"), name("a%2fb"));
        assert_ne!(name("€"), name(" ac"));
        assert_ne!(name("\u{2}f"), name("/"));
        assert_ne!(name(""), Path::new("x/"));
        assert_eq!(name("..").parent(), Some(Path::new("x")));
    }
}
