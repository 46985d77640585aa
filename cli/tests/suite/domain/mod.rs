//! A job that runs beside a test, and what `samite top` says of it.

use serde_json::Value;
use std::process::{Child, Command, Stdio};

const SAMITE: &str = env!("CARGO_BIN_EXE_samite");

pub(crate) fn samite(words: &[&str]) -> Command {
    let mut command = Command::new(SAMITE);
    command
        .env("XDG_CONFIG_HOME", "/nonexistent")
        .env_remove("SAMITE_LOG")
        .args(words);
    command
}

/// What a command prints, or its errors when it fails.
pub(crate) fn output(words: &[&str]) -> Result<String, String> {
    let output = samite(words).output().expect("samite can be started");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(text(&output.stderr)),
    }
}

/// How many descriptors, beyond the standard streams, a child of this process has from it. Some
/// runners of tests leave a few open.
pub(crate) fn inherited_descriptors() -> usize {
    let listed = Command::new("ls").arg("/proc/self/fd").output();
    let listed = listed.expect("ls can be started").stdout;
    let lines = listed.iter().filter(|byte| **byte == b'\n').count();
    lines - 4 // The standard streams, and the folder.
}

/// How many wait whose `waits_for`, or `who`, begins so.
pub(crate) fn waiting(state: &Value, which: &str, word: &str) -> usize {
    let waits = state["waits"].as_array().map_or(&[][..], Vec::as_slice);
    let is_it = |wait: &&Value| {
        let text = wait[which].as_str();
        text.is_some_and(|text| text.starts_with(word))
    };
    waits.iter().filter(is_it).count()
}

/// A job in a domain of its own, that ends with the test.
pub(crate) struct Job {
    process: Child,
    pub(crate) domain: String,
}

impl Job {
    pub(crate) fn start(test: &str, words: &[&str]) -> Job {
        let domain = format!("{test}-{}", std::process::id());
        let mut command = samite(&["run", "--domain", &domain]);
        let process = command
            .args(words)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("samite can be started");
        Job { process, domain }
    }

    /// The state as JSON, once `is_so` says yes; the job is asked again and again until then.
    pub(crate) fn wait(&mut self, is_so: impl Fn(&Value) -> bool) -> Value {
        loop {
            assert!(
                self.process.try_wait().expect("it is our child").is_none(),
                "the job has ended"
            );
            if let Ok(text) = output(&["top", "--domain", &self.domain, "--json"]) {
                let state: Value = serde_json::from_str(&text).expect("JSON");
                if is_so(&state) {
                    return state;
                }
            }
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.process);
        // In order, so that the agent ends too.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.process.wait();
    }
}
