//! A picture of the field: averages over small squares, as colours.

use colorgrad::Gradient;

use crate::Error;

/// A field reduced (never enlarged) to a maximum number of pixels per side. Rows can come in any
/// order, from any unit.
#[derive(Clone, Debug)]
pub struct Picture {
    /// The field's size.
    rows: usize,
    cols: usize,
    /// The picture's size.
    width: usize,
    height: usize,
    /// Sum and number of the cells in each pixel.
    sums: Vec<(f64, u32)>,
}

impl Picture {
    /// Returns an empty picture of a field of so many rows and columns, of at most `side x side`
    /// pixels.
    ///
    /// # Panics
    /// If the field has no cells.
    pub fn new([rows, cols]: [usize; 2], side: usize) -> Self {
        assert!(rows > 0 && cols > 0, "a picture shows at least one cell");
        let longest = rows.max(cols);
        let side = side.clamp(1, longest);
        let (width, height) = (
            (cols * side / longest).max(1),
            (rows * side / longest).max(1),
        );
        Self {
            rows,
            cols,
            width,
            height,
            sums: vec![(0.0, 0); width * height],
        }
    }

    /// Adds one row of the whole field.
    pub fn add_row(&mut self, row: usize, cells: &[f64]) {
        let start = row * self.height / self.rows * self.width;
        let pixels = &mut self.sums[start..start + self.width];
        for (col, &cell) in cells.iter().enumerate() {
            let (sum, count) = &mut pixels[col * self.width / self.cols];
            *sum += cell;
            *count += 1;
        }
    }

    /// Returns the field's size: rows and columns.
    pub fn field_size(&self) -> (usize, usize) {
        (self.rows, self.cols)
    }

    /// Returns the picture's size in pixels: width and height.
    pub fn size(&self) -> (usize, usize) {
        (self.width, self.height)
    }

    /// Returns the average in one pixel; `None` if no row of it was added.
    pub fn value(&self, x: usize, y: usize) -> Option<f64> {
        let (sum, count) = self.sums[y * self.width + x];
        (count > 0).then(|| sum / f64::from(count))
    }

    /// Returns the picture as a PNG of 255 colours, from `low` at one end of the scale to
    /// `high` at the other. Pixels without a value, or whose average is no finite number, are
    /// transparent.
    pub fn png(&self, low: f64, high: f64) -> Result<Vec<u8>, Error> {
        let level = |at: usize| {
            let value = self.value(at % self.width, at / self.width);
            let value = value.filter(|value| value.is_finite())?;
            Some(((value - low) / (high - low) * (LEVELS - 1) as f64).round() as u8)
        };
        let pixels: Vec<u8> = (0..self.sums.len())
            .map(|at| level(at).map_or(UNKNOWN, |level| level.min(UNKNOWN - 1)))
            .collect();
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, self.width as u32, self.height as u32);
        encoder.set_color(png::ColorType::Indexed);
        encoder.set_palette(palette().concat());
        encoder.set_trns([vec![u8::MAX; LEVELS], vec![0]].concat());
        let mut writer = encoder.write_header()?;
        writer.write_image_data(&pixels)?;
        writer.finish()?;
        Ok(bytes)
    }
}

/// Number of colours of the scale.
pub(crate) const LEVELS: usize = 255;
/// The palette's entry after the scale.
const UNKNOWN: u8 = LEVELS as u8;

/// Returns the scale's colours from low to high, followed by that of pixels without a value: the
/// map `inferno`, in which equal steps look equal, also in grey and to most colour-blind viewers.
pub(crate) fn palette() -> Vec<[u8; 3]> {
    let gradient = colorgrad::preset::inferno();
    let colour = |level: usize| {
        let [red, green, blue, _] = gradient.at(level as f32 / (LEVELS - 1) as f32).to_rgba8();
        [red, green, blue]
    };
    (0..LEVELS).map(colour).chain([[0; 3]]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the entries of the palette.
    fn decoded(png: &[u8]) -> Vec<u8> {
        let mut decoder = png::Decoder::new(std::io::Cursor::new(png));
        decoder.set_transformations(png::Transformations::IDENTITY);
        let mut reader = decoder.read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        reader.next_frame(&mut pixels).unwrap();
        pixels
    }

    #[test]
    fn pixels_are_averages_and_decode_to_the_scale() {
        let mut picture = Picture::new([6, 4], 3);
        assert_eq!(picture.size(), (2, 3));
        for row in [5, 4, 1, 0] {
            picture.add_row(row, &[row as f64, row as f64, 100.0, 100.0]);
        }
        assert_eq!(picture.value(0, 2), Some(4.5));
        assert_eq!(picture.value(1, 0), Some(100.0));
        assert_eq!(picture.value(0, 1), None);

        let pixels = decoded(&picture.png(0.0, 100.0).unwrap());
        assert_eq!(pixels, [1, 254, 255, 255, 11, 254]);
    }

    #[test]
    fn small_fields_are_not_enlarged_and_thin_ones_keep_a_pixel() {
        assert_eq!(Picture::new([5, 7], 600).size(), (7, 5));
        assert_eq!(Picture::new([5000, 2], 100).size(), (1, 100));
    }

    #[test]
    fn what_is_no_number_is_transparent() {
        let mut picture = Picture::new([1, 4], 4);
        picture.add_row(0, &[f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 100.0]);
        let pixels = decoded(&picture.png(0.0, 100.0).unwrap());
        assert_eq!(pixels, [UNKNOWN, UNKNOWN, UNKNOWN, 254]);
    }

    #[test]
    fn values_outside_the_scale_stay_at_its_ends() {
        let mut picture = Picture::new([1, 2], 2);
        picture.add_row(0, &[-5.0, 1e9]);
        let pixels = decoded(&picture.png(0.0, 100.0).unwrap());
        assert_eq!(pixels, [0, 254]);
    }
}
