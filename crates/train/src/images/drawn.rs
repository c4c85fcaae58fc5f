//! A set of images that is drawn, not read: shapes, glyphs and textures, each image from its number alone.

use super::draws::Draws;
use super::font;
use crate::models::vision::pixel;
use std::f32::consts::TAU;

/// What is drawn, in the order of the classes.
pub const CLASSES: [&str; 15] = [
    "disc", "square", "triangle", "ring", "cross", "glyph-a", "glyph-e", "glyph-k", "glyph-s", "glyph-4", "stripes",
    "checks", "dots", "waves", "clouds",
];
/// Images to train on, and held out.
pub const TRAIN: usize = 9_000;
/// See [`TRAIN`].
pub const HELD_OUT: usize = 1_500;
/// Pixels of a side, if nothing else is asked for.
pub const SIDE: usize = 64;

/// What the random numbers of drawings are for.
const PURPOSE: u32 = 0xd7a3;
/// Difference in brightness that what is drawn has from what it is drawn on, at least.
const CONTRAST: f32 = 70.0;

/// The class of an image.
pub fn class(number: usize) -> usize {
    number % CLASSES.len()
}

/// Draws an image of this height and width.
pub fn draw(seed: u32, number: usize, [height, width]: [usize; 2], pixels: &mut [i32]) {
    let mut draws = Draws::new(seed, PURPOSE, number as u64);
    let figure = Figure::new(class(number), &mut draws);
    let [ground, ink] = colours(&mut draws);
    // From one corner to the other the light changes a little.
    let light = [draws.between(-25.0, 25.0), draws.between(-25.0, 25.0)];
    let (noise, salt) = (draws.between(4.0, 28.0), draws.word());
    let unit = 2.0 / height.min(width) as f32;
    for (row, line) in pixels.chunks_exact_mut(width).enumerate() {
        let y = (row as f32 + 0.5) * unit - height as f32 * unit / 2.0;
        for (column, to) in line.iter_mut().enumerate() {
            let x = (column as f32 + 0.5) * unit - width as f32 * unit / 2.0;
            let share = figure.ink(x, y);
            let grain = noise * (speckle((row * width + column) as u32, salt) - 0.5);
            let shade = light[0] * x + light[1] * y + grain;
            let channel = |at: usize| (ground[at] + share * (ink[at] - ground[at]) + shade).clamp(0.0, 255.0) as u8;
            *to = pixel([channel(0), channel(1), channel(2)]);
        }
    }
}

/// Two colours that differ in brightness.
fn colours(draws: &mut Draws) -> [[f32; 3]; 2] {
    let bright = |colour: &[f32; 3]| 0.3 * colour[0] + 0.59 * colour[1] + 0.11 * colour[2];
    let ground: [f32; 3] = std::array::from_fn(|_| draws.between(20.0, 235.0));
    let mut ink: [f32; 3] = std::array::from_fn(|_| draws.between(0.0, 255.0));
    let apart = bright(&ink) - bright(&ground);
    if apart.abs() < CONTRAST {
        let shift = if bright(&ground) > 127.0 { -CONTRAST - apart } else { CONTRAST - apart };
        ink = ink.map(|channel| (channel + shift).clamp(0.0, 255.0));
    }
    [ground, ink]
}

/// A number from 0 to 1 for a place.
fn speckle(place: u32, salt: u32) -> f32 {
    let mixed = (place ^ salt).wrapping_mul(0x9e37_79b1);
    let mixed = (mixed ^ (mixed >> 15)).wrapping_mul(0x85eb_ca77);
    ((mixed ^ (mixed >> 13)) >> 8) as f32 / (1 << 24) as f32
}

/// What is drawn, and how it lies.
struct Figure {
    class: usize,
    at: [f32; 2],
    size: f32,
    turn: [f32; 2],
    salt: u32,
}

impl Figure {
    fn new(class: usize, draws: &mut Draws) -> Figure {
        let is_glyph = CLASSES[class].starts_with("glyph");
        // Letters that are turned far are other letters.
        let angle = if is_glyph { draws.between(-0.35, 0.35) } else { draws.between(0.0, TAU) };
        let is_texture = class >= 10;
        let size = if is_texture { draws.between(0.18, 0.4) } else { draws.between(0.45, 0.8) };
        let room = if is_texture { 1.0 } else { 0.95 - size };
        let at = [draws.between(-room, room), draws.between(-room, room)];
        Figure { class, at, size, turn: [angle.cos(), angle.sin()], salt: draws.word() }
    }

    /// How much of a place is covered, from 0 to 1.
    fn ink(&self, x: f32, y: f32) -> f32 {
        let (x, y) = (x - self.at[0], y - self.at[1]);
        let [cos, sin] = self.turn;
        let (x, y) = ((x * cos + y * sin) / self.size, (y * cos - x * sin) / self.size);
        let wave = |x: f32| 0.5 + 0.5 * (TAU * x).sin();
        let is_in = |inside: bool| if inside { 1.0 } else { 0.0 };
        let letter = |letter: char| {
            let [across, down] = [(x + 0.72) / 1.44 * 5.0, (y + 1.0) / 2.0 * 7.0];
            is_in(across >= 0.0 && down >= 0.0 && font::covers(letter, across as usize, down as usize))
        };
        let cell = |x: f32| x - x.floor() - 0.5;
        match CLASSES[self.class] {
            "disc" => is_in(x.hypot(y) < 0.95),
            "square" => is_in(x.abs().max(y.abs()) < 0.8),
            "triangle" => is_in(y < 0.6 && y > -1.0 + 1.8 * x.abs() - 0.05),
            "ring" => is_in((0.55..0.95).contains(&x.hypot(y))),
            "cross" => is_in(x.abs().min(y.abs()) < 0.25 && x.abs().max(y.abs()) < 0.95),
            "glyph-a" => letter('A'),
            "glyph-e" => letter('E'),
            "glyph-k" => letter('K'),
            "glyph-s" => letter('S'),
            "glyph-4" => letter('4'),
            "stripes" => wave(x),
            "checks" => is_in((x.floor() as i32 + y.floor() as i32).rem_euclid(2) == 0),
            "dots" => is_in(cell(x).hypot(cell(y)) < 0.3),
            "waves" => wave(x + 0.35 * (TAU * 0.7 * y).sin()),
            _ => self.cloud(1.6 * x, 1.6 * y),
        }
    }

    /// Soft patches: random numbers at whole places, and between them what lies between.
    fn cloud(&self, x: f32, y: f32) -> f32 {
        let (left, top) = (x.floor(), y.floor());
        let at = |dx: i32, dy: i32| {
            let [column, row] = [left as i32 + dx, top as i32 + dy].map(|place| place as u32 & 0xfff);
            speckle(row << 12 | column, self.salt)
        };
        let smooth = |share: f32| share * share * (3.0 - 2.0 * share);
        let (across, down) = (smooth(x - left), smooth(y - top));
        let line = |dy: i32| at(0, dy) + across * (at(1, dy) - at(0, dy));
        line(0) + down * (line(1) - line(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::vision::channels;

    #[test]
    fn an_image_is_the_same_whenever_it_is_drawn_and_others_differ() {
        let drawn = |seed: u32, number: usize, size: [usize; 2]| {
            let mut pixels = vec![0; size[0] * size[1]];
            draw(seed, number, size, &mut pixels);
            pixels
        };
        for number in 0..CLASSES.len() {
            let image = drawn(1, number, [24, 40]);
            assert_eq!(image, drawn(1, number, [24, 40]));
            assert_ne!(image, drawn(2, number, [24, 40]));
            assert_ne!(image, drawn(1, number + CLASSES.len(), [24, 40]));
            let greens = image.iter().map(|pixel| f32::from(channels(*pixel)[1]));
            let (low, high) = greens.fold((255f32, 0f32), |(low, high), green| (low.min(green), high.max(green)));
            assert!(high - low > 20.0, "{} shows nothing: {low} to {high}", CLASSES[number]);
        }
        assert_eq!((class(0), class(17)), (0, 2));
    }
}
