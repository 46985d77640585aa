//! How much of the coordinator's own memory the steps and the buffers of a stream use, by the
//! process that committed or requested them.
//!
//! Steps without bytes fit into every limit and every budget, but their layouts and attributes are
//! on the coordinator's heap. Each counts for its sender until it is freed. A layout that steps
//! share counts once.

use crate::protocol::ledger::{Charge, Ledger};
use crate::protocol::{Attribute, BlockOffsets, Layout, Part, Peer, encoded_bytes};
use std::collections::HashMap;
use std::mem::size_of;
use std::sync::Arc;

/// The cost of a buffer, in the tables of its stream and of its writer rank, and of a requested
/// buffer, in the tables of the waiting request.
pub(super) const BUFFER: u64 = 256;
const WANT: u64 = 64;

/// The cost of a part of a step, without its lists.
const PART: u64 = 512;

/// Maximum bytes in a message that tells readers of a step: for the step without its parts, for a
/// part without its lists, and for a buffer.
pub(super) const TOLD: u64 = 128;
const TOLD_PART: u64 = 16;
const TOLD_SLOT: u64 = 16;
const TOLD_BUFFER: u64 = 56;

/// The cost of a dimension of a box or a shape.
const DIM: u64 = 32;

/// The costs of a stream.
#[derive(Debug, Default)]
pub(super) struct Costs {
    pub(super) ledger: Ledger,
    /// By the address of the layout: its number of users, and its cost and payer.
    layouts: HashMap<usize, (u64, Charge)>,
}

impl Costs {
    pub(super) fn new(ledger: &Ledger) -> Self {
        Costs {
            ledger: ledger.clone(),
            layouts: HashMap::new(),
        }
    }

    /// Adds a user of the layout. The peer pays for it if it is new here.
    pub(super) fn hold(&mut self, layout: &Arc<Layout>, peer: Peer) {
        let new = || (0, self.ledger.charge(peer, of_layout(layout)));
        let (holds, _) = self.layouts.entry(address(layout)).or_insert_with(new);
        *holds += 1;
    }

    /// Removes a user of the layout.
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

/// Identifies a layout for as long as it is in use.
fn address(layout: &Arc<Layout>) -> usize {
    Arc::as_ptr(layout).addr()
}

/// Returns the cost of a part that is about to be committed, without its layout.
pub(super) fn of_part(part: &Part) -> u64 {
    let slots = part.slots.iter().map(|slot| 32 + 16 * slot.len() as u64);
    let places = match &part.places {
        BlockOffsets::Packed => 0,
        BlockOffsets::Listed(offsets) => 8 * offsets.len() as u64,
    };
    PART + slots.sum::<u64>() + places + of_attributes(&part.attributes)
}

/// Returns the maximum bytes of a part in a message that tells readers of its step, without its
/// layout.
pub(super) fn told_of_part(part: &Part) -> u64 {
    let slots = part.slots.iter();
    let slots = slots.map(|slot| TOLD_SLOT + TOLD_BUFFER * slot.len() as u64);
    let listed = encoded_bytes(&part.places).saturating_add(encoded_bytes(&part.attributes));
    (TOLD_PART + slots.sum::<u64>()).saturating_add(listed)
}

/// Returns the cost of a layout, including its copy in the tables that check it.
pub(super) fn of_layout(layout: &Layout) -> u64 {
    let variables = layout.variables.iter().map(|variable| {
        // Boxes of few dimensions are stored inside their variable.
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

/// Returns the cost of a waiting request for `wants` buffers.
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
