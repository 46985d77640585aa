//! The wire protocol PMI-1, by which the processes of a job exchange words before they know each
//! other. Hydra (`mpiexec` of MPICH and Intel MPI) speaks it, and `srun --mpi=pmi2`.
//!
//! A process writes a line and reads one: `cmd=get kvsname=S key=K`, and `cmd=get_result rc=0
//! value=V`. What one has `put` can be read by all after a `barrier`, which all must call. The
//! source of the protocol is the documentation of MPICH, "PMI wire protocol".

use super::place::own_descriptor;
use crate::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Longest line that is read, in bytes.
const LINE_MAX: u64 = 64 << 10;
/// Longest value that every process manager takes, in bytes.
const VALUE_MAX: usize = 1024;

/// The connection of this process to its process manager.
#[derive(Debug)]
pub(super) struct Pmi {
    stream: BufReader<UnixStream>,
    /// The name of the space of keys of this job.
    space: String,
}

fn failed(what: &str) -> Error {
    Error::Managed(format!("the process manager (PMI): {what}"))
}

impl Pmi {
    /// Connects; each wait takes at most `patience`. Once in a process: a manager takes no second
    /// connection, not even by the program that this process becomes.
    ///
    /// # Errors
    /// [`Error::Managed`]: the manager offers none, or is of another kind.
    pub(super) fn of_environment(patience: Duration) -> Result<Pmi, Error> {
        let number = std::env::var("PMI_FD").unwrap_or_default();
        let socket = own_descriptor(&number);
        let socket = socket.ok_or_else(|| failed("its descriptor (PMI_FD) is not open"))?;
        Pmi::over(UnixStream::from(socket), patience)
    }

    fn over(stream: UnixStream, patience: Duration) -> Result<Pmi, Error> {
        let set = stream.set_read_timeout(Some(patience));
        set.map_err(|error| failed(&format!("its descriptor is no socket: {error}")))?;
        let mut pmi = Pmi {
            stream: BufReader::new(stream),
            space: String::new(),
        };
        pmi.ask(
            "cmd=init pmi_version=1 pmi_subversion=1",
            "response_to_init",
        )?;
        let answer = pmi.ask("cmd=get_my_kvsname", "my_kvsname")?;
        pmi.space = value(&answer, "kvsname")
            .ok_or_else(|| failed("it names no space of keys"))?
            .to_owned();
        Ok(pmi)
    }

    /// Publishes a word: no spaces, at most 1024 bytes. Others read it after the next
    /// [`Pmi::barrier`].
    ///
    /// # Errors
    /// [`Error::Managed`].
    pub(super) fn put(&mut self, key: &str, word: &str) -> Result<(), Error> {
        if word.len() > VALUE_MAX || word.contains(char::is_whitespace) {
            return Err(failed(&format!("`{key}` is too long, or not one word")));
        }
        let space = &self.space;
        let line = format!("cmd=put kvsname={space} key={key} value={word}");
        self.ask(&line, "put_result").map(drop)
    }

    /// Waits until all processes of the job are here. Collective over the job.
    ///
    /// # Errors
    /// [`Error::Managed`]: not all have come in time.
    pub(super) fn barrier(&mut self) -> Result<(), Error> {
        self.ask("cmd=barrier_in", "barrier_out").map(drop)
    }

    /// Returns a word that a process has published before the last barrier.
    ///
    /// # Errors
    /// [`Error::Managed`]: nobody has.
    pub(super) fn get(&mut self, key: &str) -> Result<String, Error> {
        let line = format!("cmd=get kvsname={} key={key}", self.space);
        let answer = self.ask(&line, "get_result")?;
        let found = value(&answer, "value");
        found
            .map(str::to_owned)
            .ok_or_else(|| failed(&format!("nobody has published `{key}`")))
    }

    /// Ends the connection. A manager takes a process that has not done so for one that failed.
    ///
    /// # Errors
    /// [`Error::Managed`].
    pub(super) fn finalize(mut self) -> Result<(), Error> {
        self.ask("cmd=finalize", "finalize_ack").map(drop)
    }

    /// Sends a line, and returns the answer, which has this name.
    fn ask(&mut self, line: &str, answer: &str) -> Result<String, Error> {
        // Not the whole line, which may have a secret.
        let asked = line.split(' ').next().unwrap_or_default();
        let lost = |error: std::io::Error| failed(&format!("no answer to `{asked}`: {error}"));
        self.stream
            .get_mut()
            .write_all(format!("{line}\n").as_bytes())
            .map_err(lost)?;
        let mut read = String::new();
        let mut reader = self.stream.by_ref().take(LINE_MAX);
        reader.read_line(&mut read).map_err(lost)?;
        let is_right = read.ends_with('\n') && value(&read, "cmd") == Some(answer);
        match is_right && value(&read, "rc").is_none_or(|code| code == "0") {
            true => Ok(read),
            false => Err(failed(&format!("to `{asked}`, it says `{}`", read.trim()))),
        }
    }
}

/// Returns the value of a name in a line such as `cmd=put_result rc=0`.
fn value<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let mut words = line.split_whitespace();
    words.find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread::{self, JoinHandle};

    /// A manager that gives these answers, and returns what it was asked.
    fn manager(answers: Vec<&'static str>) -> (UnixStream, JoinHandle<Vec<String>>) {
        let (ours, its) = UnixStream::pair().unwrap();
        let serve = move || {
            let mut stream = BufReader::new(its);
            let mut asked = Vec::new();
            for answer in answers {
                let mut line = String::new();
                stream.read_line(&mut line).unwrap();
                asked.push(line.trim().to_owned());
                stream.get_mut().write_all(answer.as_bytes()).unwrap();
            }
            asked
        };
        (ours, thread::spawn(serve))
    }

    const BEGIN: [&str; 2] = [
        "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n",
        "cmd=my_kvsname kvsname=kvs_1_0\n",
    ];
    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn words_are_exchanged() {
        let answers = [
            &BEGIN[..],
            &[
                "cmd=put_result rc=0 msg=success\n",
                "cmd=barrier_out\n",
                "cmd=get_result rc=0 msg=success value=10.0.0.1:70\n",
                "cmd=finalize_ack\n",
            ],
        ];
        let (stream, manager) = manager(answers.concat());
        let mut pmi = Pmi::over(stream, PATIENCE).unwrap();
        pmi.put("samite", "10.0.0.1:70").unwrap();
        pmi.barrier().unwrap();
        assert_eq!(pmi.get("samite").unwrap(), "10.0.0.1:70");
        pmi.finalize().unwrap();
        let asked = manager.join().unwrap();
        assert_eq!(
            asked[2],
            "cmd=put kvsname=kvs_1_0 key=samite value=10.0.0.1:70"
        );
        assert_eq!(asked[4], "cmd=get kvsname=kvs_1_0 key=samite");
    }

    #[test]
    fn wrong_answers_are_errors() {
        let long: &'static str = String::leak("cmd=barrier_out ".repeat(5000));
        for (answer, says) in [
            ("cmd=get_result rc=-1 msg=key_not_found\n", "key_not_found"),
            ("cmd=barrier_out\n", "it says `cmd=barrier_out`"),
            ("cmd=get_result rc=0\n", "nobody has published `samite`"),
            ("cmd=get_result rc=0 value=cut off", "cut off"),
            (long, "it says"),
        ] {
            let (stream, manager) = manager([&BEGIN[..], &[answer]].concat());
            let mut pmi = Pmi::over(stream, PATIENCE).unwrap();
            let said = pmi.get("samite").unwrap_err().to_string();
            assert!(said.contains(says), "{answer}: {said}");
            drop(pmi);
            manager.join().unwrap();
        }
        let (stream, manager) = manager(BEGIN.to_vec());
        let mut pmi = Pmi::over(stream, PATIENCE).unwrap();
        assert!(pmi.put("samite", "two words").is_err());
        assert!(pmi.put("samite", &"x".repeat(VALUE_MAX + 1)).is_err());
        manager.join().unwrap();
        // It has gone.
        assert!(pmi.barrier().is_err());
    }
}
