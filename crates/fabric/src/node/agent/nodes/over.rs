//! Why this node is not, or no longer, one of its domain, in sentences for its user.

use super::Network;
use super::connection::Ended;
use crate::membership::Refusal;
use rustix::io::Errno;

/// Why this node cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    /// The connection with the first agent ended before this node was admitted.
    Unreached(Ended),
    /// The first agent refuses this node.
    Refused(Refusal),
    /// It has not admitted this node in time.
    NotAdmitted,
    /// The others have declared this node lost.
    Fenced,
    /// This node has left.
    Left,
    /// A call of the kernel failed.
    System(Errno),
}

impl From<Errno> for Over {
    fn from(error: Errno) -> Over {
        Over::System(error)
    }
}

impl Over {
    /// Returns whether calling the first agent again is in vain.
    pub(super) fn is_final(self) -> bool {
        match self {
            Over::Unreached(ended) => ended.is_final(),
            // The other node of this name may be gone soon.
            Over::Refused(refusal) => !matches!(refusal, Refusal::NameTaken | Refusal::NotYet),
            Over::NotAdmitted | Over::Fenced | Over::Left | Over::System(_) => true,
        }
    }

    /// Returns the sentence: what is wrong, and what its user can do.
    pub(super) fn sentence(self, network: &Network) -> String {
        let head = network.join.as_deref().unwrap_or_default();
        match self {
            Over::Unreached(Ended::OtherVersion) | Over::Refused(Refusal::Version) => format!(
                "the agent at {head} is of another version of Samite: install the same one on all \
                 machines"
            ),
            Over::Unreached(Ended::OtherAddress) => format!(
                "the agent at {head} listens at another address: join it there (addresses must \
                 not be translated, nor ports forwarded, between agents)"
            ),
            Over::Unreached(Ended::OtherSecret) => format!(
                "the agent at {head} has another secret: give both the same one (--secret FILE)"
            ),
            Over::Unreached(Ended::NoAgent) => {
                format!(
                    "what answers at {head} is no agent of Samite: --join names another address"
                )
            }
            Over::Unreached(Ended::TooSlow) => format!(
                "what listens at {head} does not greet: it is no agent of Samite, or one that is \
                 stopped"
            ),
            Over::Unreached(_) => format!(
                "no agent answers at {head} (is it running, and is no firewall in between?)"
            ),
            Over::Refused(Refusal::NotHead) => {
                format!("the agent at {head} is not the first one of its domain: join that one")
            }
            Over::Refused(Refusal::NameTaken) => format!(
                "the domain has a node {} already: give this one another name (--node NAME)",
                network.name
            ),
            Over::Refused(Refusal::Full) => format!("the domain of {head} is full"),
            Over::Refused(Refusal::Ending) => format!("the domain of {head} is ending"),
            Over::Refused(other) => format!("the agent at {head} refuses this node ({other:?})"),
            Over::NotAdmitted => format!("the agent at {head} has not admitted this node"),
            Over::Fenced => {
                "this node was cut off for so long that the others have declared it lost".into()
            }
            Over::Left => "this node has left the domain".into(),
            Over::System(error) => format!("the agent cannot wait for other agents: {error}"),
        }
    }
}
