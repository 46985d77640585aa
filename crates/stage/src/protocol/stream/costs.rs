//! What the steps and the buffers of a stream take of the coordinator's own memory, by who has
//! committed or asked for them.
//!
//! Steps without bytes fit into every limit and every budget, but their layouts and attributes lie
//! on the coordinator's heap. Each is counted for the peer from which it came, until it is let go.
//! A layout that steps share is counted once.

use crate::protocol::ledger::{Charge, Ledger};
use crate::protocol::{Attribute, BlockOffsets, Layout, Part, Peer, encoded_bytes};
use std::collections::HashMap;
use std::mem::size_of;
use std::sync::Arc;

/// A buffer in the tables of its stream and of its writer rank, and one that is wanted in those of
/// whoever waits for it.
pub(super) const BUFFER: u64 = 256;
const WANT: u64 = 64;

/// A part of a step beside what it lists.
const PART: u64 = 512;

/// Most bytes of a message in what readers are told of a step: beside its parts, of a part beside
/// what it lists, and of a buffer.
pub(super) const TOLD: u64 = 128;
const TOLD_PART: u64 = 16;
const TOLD_SLOT: u64 = 16;
const TOLD_BUFFER: u64 = 56;

/// A dimension of a box or a shape.
const DIM: u64 = 32;

/// Where the stream counts what it has.
#[derive(Debug, Default)]
pub(super) struct Costs {
    pub(super) ledger: Ledger,
    /// By the address of the layout: how many have it, and what it costs whom.
    layouts: HashMap<usize, (u64, Charge)>,
}

impl Costs {
    pub(super) fn new(ledger: &Ledger) -> Self {
        Costs {
            ledger: ledger.clone(),
            layouts: HashMap::new(),
        }
    }

    /// One more has the layout, which came from that peer if it is new here.
    pub(super) fn hold(&mut self, layout: &Arc<Layout>, peer: Peer) {
        let new = || (0, self.ledger.charge(peer, of_layout(layout)));
        let (holds, _) = self.layouts.entry(address(layout)).or_insert_with(new);
        *holds += 1;
    }

    /// One less has it.
    pub(super) fn let_go(&mut self, layout: &Arc<Layout>) {
        let Some((holds, _)) = self.layouts.get_mut(&address(layout)) else {
            return;
        };
        *holds -= 1;
        if *holds == 0 {
            self.layouts.remove(&address(layout));
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
        BlockOffsets::Packed => 0,
        BlockOffsets::Listed(offsets) => 8 * offsets.len() as u64,
    };
    PART + slots.sum::<u64>() + places + of_attributes(&part.attributes)
}

/// Most bytes of a part in a message that tells readers of its step, beside its layout.
pub(super) fn told_of_part(part: &Part) -> u64 {
    let slots = part.slots.iter();
    let slots = slots.map(|slot| TOLD_SLOT + TOLD_BUFFER * slot.len() as u64);
    let listed = encoded_bytes(&part.places).saturating_add(encoded_bytes(&part.attributes));
    (TOLD_PART + slots.sum::<u64>()).saturating_add(listed)
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
