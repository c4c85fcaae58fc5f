//! Reading parts of a file to where they are wanted. Files are not mapped: what was read through a map stays resident.

use std::fs::File;
use std::io;

/// Fills `bytes` from the file, beginning at `offset`.
#[cfg(unix)]
pub fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, offset)
}

/// Fills `bytes` from the file, beginning at `offset`.
#[cfg(windows)]
pub fn read_at(file: &File, mut bytes: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, bytes, offset)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => (bytes, offset) = (&mut bytes[count..], offset + count as u64),
        }
    }
    Ok(())
}

/// Fills elements of four bytes with what two bytes each stand for in the file. They are read into the second half of
/// the elements' own place and spread from there, so that nothing else is needed.
pub fn read_widened(
    file: &File,
    bytes: &mut [u8],
    offset: u64,
    mut widen: impl FnMut([u8; 2]) -> [u8; 4],
) -> io::Result<()> {
    let half = bytes.len() / 2;
    read_at(file, &mut bytes[half..], offset)?;
    // The element that is written ends before the next one that is read begins.
    for index in 0..half / 2 {
        let narrow = half + 2 * index;
        let wide = widen([bytes[narrow], bytes[narrow + 1]]);
        bytes[4 * index..4 * index + 4].copy_from_slice(&wide);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing::Folder;
    use super::*;

    #[test]
    fn two_bytes_become_four_in_their_own_place() {
        let folder = Folder::new("reading");
        let path = folder.path().join("a");
        for count in [0, 1, 2, 7, 100] {
            let numbers: Vec<u16> = (0..count).map(|index| index * 641).collect();
            std::fs::write(&path, [&[9; 3], bytemuck::cast_slice::<u16, u8>(&numbers)].concat()).unwrap();
            let mut out = vec![0u32; count as usize];
            let file = File::open(&path).unwrap();
            let widen = |bytes| u32::from(u16::from_ne_bytes(bytes)).to_ne_bytes();
            read_widened(&file, bytemuck::cast_slice_mut(&mut out), 3, widen).unwrap();
            assert!(out.iter().zip(&numbers).all(|(wide, narrow)| *wide == u32::from(*narrow)), "{count}");
        }
        let file = File::open(&path).unwrap();
        assert!(read_at(&file, &mut [0; 8], 200).is_err(), "past the end");
    }
}
