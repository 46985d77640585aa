//! The method `file`: the same program writes its steps to files and reads them from there.
//!
//! A stream is a folder of [`crate::file`] below [`super::Settings::folder`]. Nobody is asked for anything: a writer does not
//! wait for its readers, and readers look at the files again and again until there is a step.

use crate::contents::{BlockAt, Contents, Indexed, Variable};
use crate::desk::Desk;
use crate::file::{Archive, Content, FileError, StepFile};
use crate::protocol::{Attribute, EndOfStream, Fault, Layout, LayoutHash, Policy, Start, Step};
use crate::reader::{Bytes, StepReader, Taken};
use crate::{Error, Region, Result};
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How often files are looked at, at first and at last.
const LOOK: (Duration, Duration) = (Duration::from_micros(200), Duration::from_millis(20));

/// The folder of a stream: its name, with what no name of a folder should have replaced.
fn folder_of(folder: &Path, stream: &str) -> PathBuf {
    let plain = |letter: char| letter.is_alphanumeric() || "-_.+".contains(letter);
    let mut name = String::new();
    for letter in stream.chars() {
        match letter {
            letter if plain(letter) && !(letter == '.' && name.is_empty()) => name.push(letter),
            other => name += &format!("%{:x}", u32::from(other)),
        }
    }
    folder.join(name)
}

fn wrong(stream: &str) -> impl Fn(FileError) -> Error + '_ {
    move |error| Error::File {
        stream: stream.to_owned(),
        why: error.to_string(),
    }
}

/// One rank's file, being written. Ended in order when dropped.
pub(crate) struct FileWriting {
    stream: String,
    file: Option<StepFile>,
    pub(crate) next: Step,
}

impl FileWriting {
    /// Goes on after the last whole step of a file that was not ended in order, else begins anew.
    pub(crate) fn open(folder: &Path, stream: &str, (rank, ranks): (u32, u32)) -> Result<Self> {
        let folder = folder_of(folder, stream);
        let file = StepFile::begin(&folder, stream, rank, ranks).map_err(wrong(stream))?;
        Ok(FileWriting {
            stream: stream.to_owned(),
            next: file.last().map_or(0, |last| last + 1),
            file: Some(file),
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
        if let Some(file) = &mut self.file {
            file.append(self.next, content)
                .map_err(wrong(&self.stream))?;
        }
        self.next += 1;
        Ok(())
    }
}

impl Drop for FileWriting {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.file.take().map(StepFile::finish) {
            tracing::warn!(stream = self.stream, %error, "the file was not ended in order");
        }
    }
}

/// The files of a stream, being read.
pub(crate) struct FileReading<'f> {
    desk: Rc<Desk<'f>>,
    stream: String,
    archive: Rc<RefCell<Archive>>,
    policy: Policy,
    next: Step,
}

/// The bytes of a step.
pub(crate) struct StoredBytes {
    stream: String,
    archive: Rc<RefCell<Archive>>,
}

impl<'f> FileReading<'f> {
    /// Waits for the files to appear.
    pub(crate) fn open(
        desk: Rc<Desk<'f>>,
        folder: &Path,
        stream: &str,
        (start, policy): (Start, Policy),
    ) -> Result<Self> {
        let folder = folder_of(folder, stream);
        let archive = look(&desk, || match Archive::open(&folder) {
            Ok(archive) => Ok(Some(archive)),
            // Not there yet, or without a header yet.
            Err(FileError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                Ok(None)
            }
            Err(FileError::NotAStream { .. }) => Ok(None),
            Err(error) => Err(wrong(stream)(error)),
        })?;
        let Some(archive) = archive else {
            let stream = stream.to_owned();
            return Err(Fault::NoStream { stream }.into());
        };
        let next = match start {
            Start::Earliest => 0,
            Start::Latest => archive.steps().last().copied().unwrap_or(0),
            Start::Step(step) => step,
        };
        Ok(FileReading {
            desk,
            stream: stream.to_owned(),
            archive: Rc::new(RefCell::new(archive)),
            policy,
            next,
        })
    }

    /// The next step by the policy: files drop nothing, so all policies but `Latest` and `Every` take every step.
    pub(crate) fn next_step(&mut self) -> Result<Taken<'f>> {
        let (next, policy) = (self.next, self.policy);
        let taken = self.wait(|steps| {
            let mut wanted = steps.iter().copied().filter(|step| *step >= next);
            match policy {
                Policy::Latest => wanted.next_back(),
                Policy::Every(n) => wanted.find(|step| step.is_multiple_of(n.max(1))),
                _ => wanted.next(),
            }
        })?;
        if let Taken::Step(step) = &taken {
            self.next = step.number + 1;
        }
        Ok(taken)
    }

    pub(crate) fn at(&mut self, step: Step) -> Result<Taken<'f>> {
        self.wait(|steps| steps.binary_search(&step).ok().map(|_| step))
    }

    /// Looks until `choose` finds a step, or there will be no more.
    fn wait(&self, choose: impl Fn(&[Step]) -> Option<Step>) -> Result<Taken<'f>> {
        let found = look(&self.desk, || {
            let mut archive = self.archive.borrow_mut();
            let known = choose(archive.steps());
            if known.is_none() || self.policy == Policy::Latest {
                archive.refresh().map_err(wrong(&self.stream))?;
            }
            Ok(match choose(archive.steps()) {
                Some(step) => Some(Some(step)),
                None if archive.is_finished() => Some(None),
                None => None,
            })
        })?;
        match found {
            Some(Some(step)) => Ok(Taken::Step(self.hold(step)?)),
            Some(None) => Ok(Taken::End(EndOfStream::Closed)),
            None => Err(Fault::NoStep {
                stream: self.stream.clone(),
                committed: self.archive.borrow().steps().len() as u64,
            }
            .into()),
        }
    }

    fn hold(&self, number: Step) -> Result<StepReader<'f>> {
        let archive = self.archive.borrow();
        let stored = archive.step(number).map_err(wrong(&self.stream))?;
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
        Ok(StepReader {
            stream: self.stream.clone(),
            number,
            contents: Rc::new(contents),
            attributes: stored.attributes().to_vec(),
            bytes: Bytes::Stored(StoredBytes {
                stream: self.stream.clone(),
                archive: self.archive.clone(),
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
        let archive = self.archive.borrow();
        let stored = archive.step(step).map_err(wrong(&self.stream))?;
        match stored.read_into(&variable.info.name, region, into) {
            Err(FileError::Hole { .. }) => Err(variable.hole(step, region)),
            result => result.map_err(wrong(&self.stream)),
        }
    }
}

/// Asks until there is an answer, up to the deadline; `None` then. What comes meanwhile is served.
fn look<T>(desk: &Desk<'_>, mut ask: impl FnMut() -> Result<Option<T>>) -> Result<Option<T>> {
    let begin = Instant::now();
    let mut pause = LOOK.0;
    loop {
        let answer = ask()?;
        let left = desk.fabric.deadline().saturating_sub(begin.elapsed());
        if answer.is_some() || left.is_zero() {
            return Ok(answer);
        }
        desk.fabric.progress();
        std::thread::sleep(pause.min(left));
        pause = (pause * 2).min(LOOK.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_streams_are_names_of_folders() {
        let name = |stream| folder_of(Path::new("x"), stream);
        assert_eq!(name("field-2.b"), Path::new("x/field-2.b"));
        assert_eq!(name("../a/b"), Path::new("x/%2e.%2fa%2fb"));
        assert_ne!(name("a/b"), name("a%2fb"));
        assert_eq!(name("..").parent(), Some(Path::new("x")));
    }
}
