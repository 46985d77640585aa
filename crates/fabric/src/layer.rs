//! What there may be once on a fabric at a time: a layer whose handlers and tags would meet those
//! of a second one.

use crate::Fabric;

/// The right to be the one layer of its name on a fabric; it ends when it is dropped.
#[derive(Debug)]
pub struct Layer {
    fabric: Fabric,
    name: &'static str,
    life: u32,
}

/// A name: whether somebody has it, and how often it was had.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    held: bool,
    lives: u32,
}

impl Fabric {
    /// Takes a name that only one layer of this process may have at a time; `None` while another
    /// one has it. Local.
    pub fn layer(&self, name: &'static str) -> Option<Layer> {
        let mut layers = self.0.layers();
        let taken = layers.entry(name).or_default();
        if std::mem::replace(&mut taken.held, true) {
            return None;
        }
        taken.lives = taken.lives.wrapping_add(1);
        let life = taken.lives;
        drop(layers);
        Some(Layer {
            fabric: self.clone(),
            name,
            life,
        })
    }
}

impl Layer {
    /// How often the name was taken on this fabric, this time included: what tells the messages of
    /// this life from those of an earlier one, where all units begin and end their layers together.
    pub fn life(&self) -> u32 {
        self.life
    }
}

impl Drop for Layer {
    fn drop(&mut self) {
        if let Some(taken) = self.fabric.0.layers().get_mut(self.name) {
            taken.held = false;
        }
    }
}
