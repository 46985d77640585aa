//! What the steps and the buffers of a stream take of the coordinator's own memory, by who has committed or asked for them.
//!
//! Steps without bytes fit into every limit and every budget, but their layouts and attributes lie on the coordinator's heap. Each
//! is counted for the peer from which it came, until it is let go. A layout that steps share is counted once.

use crate::protocol::{Attribute, Layout, Part, Peer, Places};
use std::collections::{BTreeMap, HashMap};
use std::mem::size_of;
use std::sync::Arc;

/// A buffer in the tables of its stream and of its writer rank, and one that is wanted in those of whoever waits for it.
pub(super) const BUFFER: u64 = 256;
const WANT: u64 = 64;

/// A part of a step beside what it lists.
const PART: u64 = 512;

/// A dimension of a box or a shape.
const DIM: u64 = 32;

/// The sums.
#[derive(Debug, Default)]
pub(super) struct Costs {
    peers: BTreeMap<Peer, u64>,
    all: u64,
    /// By the address of the layout: how many have it, whose it is, and what it costs.
    layouts: HashMap<usize, (u64, Peer, u64)>,
}

impl Costs {
    /// Of a peer, or of everybody.
    pub(super) fn of(&self, peer: Option<Peer>) -> u64 {
        match peer {
            Some(peer) => self.peers.get(&peer).copied().unwrap_or(0),
            None => self.all,
        }
    }

    pub(super) fn add(&mut self, peer: Peer, bytes: u64) {
        *self.peers.entry(peer).or_default() += bytes;
        self.all += bytes;
    }

    pub(super) fn sub(&mut self, peer: Peer, bytes: u64) {
        let Some(sum) = self.peers.get_mut(&peer) else {
            return;
        };
        *sum -= bytes;
        if *sum == 0 {
            self.peers.remove(&peer);
        }
        self.all -= bytes;
    }

    /// One more has the layout, which came from that peer if it is new here.
    pub(super) fn hold(&mut self, layout: &Arc<Layout>, peer: Peer) {
        if let Some((holds, ..)) = self.layouts.get_mut(&address(layout)) {
            *holds += 1;
            return;
        }
        let bytes = of_layout(layout);
        self.layouts.insert(address(layout), (1, peer, bytes));
        self.add(peer, bytes);
    }

    /// One less has it.
    pub(super) fn let_go(&mut self, layout: &Arc<Layout>) {
        let Some((holds, peer, bytes)) = self.layouts.get_mut(&address(layout)) else {
            return;
        };
        let (peer, bytes) = (*peer, *bytes);
        *holds -= 1;
        if *holds == 0 {
            self.layouts.remove(&address(layout));
            self.sub(peer, bytes);
        }
    }
}

/// What names a layout as long as anybody has it.
fn address(layout: &Arc<Layout>) -> usize {
    Arc::as_ptr(layout).addr()
}

/// What a part that is to be committed will take beside its layout.
pub(super) fn of_part(part: &Part) -> u64 {
    let slots = part.slots.iter().map(|slot| 32 + 16 * slot.len() as u64);
    let places = match &part.places {
        Places::Packed => 0,
        Places::Listed(offsets) => 8 * offsets.len() as u64,
    };
    PART + slots.sum::<u64>() + places + of_attributes(&part.attributes)
}

/// What a layout takes, its copy in the tables that check it included.
pub(super) fn of_layout(layout: &Layout) -> u64 {
    let variables = layout.variables.iter().map(|variable| {
        // Boxes of few dimensions lie where their variable does.
        let dims = match variable.shape.spilled() {
            true => DIM * variable.shape.len() as u64,
            false => 0,
        };
        let blocks = variable.blocks.len() as u64;
        let own = size_of_val(variable) + 2 * variable.name.len();
        let each = size_of::<crate::protocol::Block>() as u64 + dims;
        2 * (own as u64 + dims) + blocks * each + of_attributes(&variable.attributes)
    });
    PART + variables.sum::<u64>()
}

/// What a question for so many buffers takes while it waits.
pub(super) fn of_wants(wants: usize) -> u64 {
    WANT * wants as u64
}

fn of_attributes(attributes: &[(String, Attribute)]) -> u64 {
    let payload = |attribute: &Attribute| match attribute {
        Attribute::Text(text) => text.len(),
        Attribute::Integer(_) | Attribute::Real(_) => 0,
        Attribute::Integers(numbers) => 8 * numbers.len(),
        Attribute::Reals(numbers) => 8 * numbers.len(),
    };
    let each = attributes.iter().map(|(name, attribute)| {
        size_of::<(String, Attribute)>() + name.len() + payload(attribute) + 32
    });
    each.sum::<usize>() as u64
}
