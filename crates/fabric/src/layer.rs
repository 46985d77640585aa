//! Layers of which a fabric may have only one at a time, because the handlers and tags of two would
//! collide.

use crate::Fabric;

/// The right to be the only layer with its name on a fabric. It ends when it is dropped.
#[derive(Debug)]
pub struct Layer {
    fabric: Fabric,
    name: &'static str,
    life: u32,
}

/// State of a name: whether it is in use, and how many times it was taken.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    held: bool,
    lives: u32,
}

impl Fabric {
    /// Takes a name that only one layer of this process may have at a time. Returns `None` while
    /// another layer has it. Local.
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
    /// Returns how many times the name was taken on this fabric, including this time. If all units
    /// begin and end their layers together, this number distinguishes messages of this layer from
    /// those of earlier ones.
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
