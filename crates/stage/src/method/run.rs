//! The run of its job to which a process belongs, which distinguishes files of streams.
//!
//! The processes of a run share the agent of their domain, and nothing else that differs from run
//! to run: a job keeps its name, and process ids are reused. So a run is identified by that agent:
//! its process, its start time, and the boot. A rank that died and returns finds the same agent,
//! and belongs to the same run; so do programs that are started one after another in the domain of
//! one `samite agent`. Without an agent, only the name of the job is known (`SAMITE_JOB`; a process
//! without it is a job, and so a run, of its own).

use crate::process;
use crate::protocol::Peer;
use samite_fabric::Fabric;

/// Returns the number of the run: the same for all processes of this host that share an agent. On
/// another host, the process id of the agent means nothing, and the boot is another one: with
/// agents on several hosts, what the agent knows of itself has to come from the agent.
pub(crate) fn run_of(fabric: &Fabric, agent: Peer) -> u64 {
    let what = match fabric.domain() {
        Some(domain) => {
            let peers = fabric.peers();
            let agent = peers.iter().find(|info| info.peer == agent.id());
            life(domain, agent.map_or(0, |info| info.pid))
        }
        None => format!("job {}", fabric.identity().job),
    };
    // 0 is for files without a run.
    xxhash_rust::xxh3::xxh3_64(what.as_bytes()).max(1)
}

/// Returns text that identifies a process uniquely, as far as the system gives the information.
fn life(domain: &str, pid: i32) -> String {
    let began = process::status(pid).map_or(0, |status| status.began);
    format!("domain {domain} {pid} {began} {}", process::boot())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_life_is_of_its_domain() {
        let own = std::process::id() as i32;
        assert_eq!(life("d", own), life("d", own));
        assert_ne!(life("d", own), life("e", own));
    }
}
