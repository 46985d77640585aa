//! Which run of its job a process belongs to: what files of streams are told apart by.
//!
//! The processes of a run share the agent of their domain, and nothing else that is not the same
//! the next time: a job keeps its name, and numbers of processes come again. So a run is the life
//! of that agent: its process, when it began, since which boot. A rank that died and comes back
//! finds the same agent, and is of the same run; so are programs that somebody starts one after
//! another in the domain of one `samite agent`. Without an agent the name of the job is all there
//! is (`SAMITE_JOB`; a process that was not given one is a job, and so a run, of its own).

use crate::process;
use crate::protocol::Peer;
use samite_fabric::Fabric;

/// The number of the run: the same for all processes that share an agent.
pub(crate) fn run_of(fabric: &Fabric, agent: Peer) -> u64 {
    let what = match fabric.domain() {
        Some(domain) => {
            let peers = fabric.peers();
            let agent = peers.iter().find(|info| info.peer == agent.id());
            life(domain, agent.map_or(0, |info| info.pid))
        }
        None => format!("job {}", fabric.identity().job),
    };
    // 0 is for files of no run.
    xxhash_rust::xxh3::xxh3_64(what.as_bytes()).max(1)
}

/// What no other process has ever had; less of it where the system does not tell.
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
