//! The run of its job to which a process belongs, which distinguishes files of streams.
//!
//! The processes of a run share the agent of their domain, and nothing else that differs from run
//! to run: a job keeps its name, and process ids are reused. So the coordinator, which lives in the
//! agent, has a random number, and tells it to whoever asks. A rank that died and returns finds the
//! same agent, and belongs to the same run; so do programs that are started one after another in
//! the domain of one `samite agent`, on any of its hosts. Without an agent, only the name of the
//! job is known (`SAMITE_JOB`; a process without it is a job, and so a run, of its own).

use crate::Result;
use crate::client::Client;

/// Returns the number of the run: the same for all processes that share an agent.
///
/// # Errors
/// The coordinator does not answer.
pub(crate) fn run_of(client: &Client) -> Result<u64> {
    let run = match client.fabric.domain() {
        Some(_) => client.run()?,
        None => {
            let job = format!("job {}", client.fabric.identity().job);
            xxhash_rust::xxh3::xxh3_64(job.as_bytes())
        }
    };
    // 0 is for files without a run.
    Ok(run.max(1))
}
