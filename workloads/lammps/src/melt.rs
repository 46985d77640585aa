//! The Lennard-Jones melt of LAMMPS' benchmarks (`bench/in.lj`), as a list of commands.

/// A crystal of face-centred cubic cells, four atoms each, that gets a temperature and melts.
/// Lennard-Jones units, periodic on all sides, constant energy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Melt {
    cells: [u64; 3],
    temperature: f64,
}

impl Melt {
    /// Returns a box of this many cells in each direction; at least 4, since atoms must not
    /// interact with themselves.
    pub fn new(cells: [u64; 3]) -> Self {
        Melt {
            cells,
            temperature: 1.44,
        }
    }

    /// Returns the box of the benchmark `-var x X -var y Y -var z Z`: 20 cells times each, 32,000
    /// atoms at 1, 1, 1. At 4, 2, 2 it has 512,000 atoms, as many as a process of the study.
    pub fn bench(times: [u64; 3]) -> Self {
        Self::new(times.map(|times| 20 * times))
    }

    /// Sets another temperature than the benchmark's 1.44; 3.0 is that of the example `melt`.
    #[must_use]
    pub fn at_temperature(self, temperature: f64) -> Self {
        Melt {
            temperature,
            ..self
        }
    }

    /// Returns the number of atoms.
    pub fn atoms(&self) -> u64 {
        4 * self.cells.iter().product::<u64>()
    }

    /// Returns the commands that create it; the next one may be `run`.
    pub fn commands(&self) -> Vec<String> {
        let [x, y, z] = self.cells;
        let temperature = self.temperature;
        [
            "units lj",
            "atom_style atomic",
            "lattice fcc 0.8442",
            &format!("region box block 0 {x} 0 {y} 0 {z}"),
            "create_box 1 box",
            "create_atoms 1 box",
            "mass 1 1.0",
            // The velocities depend only on the positions of the atoms, not on how LAMMPS is run.
            &format!("velocity all create {temperature} 87287 loop geom"),
            "pair_style lj/cut 2.5",
            "pair_coeff 1 1 1.0 1.0 2.5",
            "neighbor 0.3 bin",
            "neigh_modify delay 0 every 20 check no",
            "fix 1 all nve",
        ]
        .map(str::to_owned)
        .into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_benchmark_has_its_atoms() {
        assert_eq!(Melt::bench([1, 1, 1]).atoms(), 32_000);
        assert_eq!(Melt::bench([4, 2, 2]).atoms(), 512_000);
    }
}
