;; Sums and counts the 32-bit words of a granted segment that are below a bound.
;;
;; payload   0 grant   4 bound   8 offset in bytes, a multiple of 64   16 length, a multiple of 64
;; reply     0 sum   8 count
;;
;; The segment has to be mapped. Lanes hold sums of 64 bits: a word is widened before it is added.
(module
  (import "samite" "memory" (memory 1))
  (import "samite" "base" (func $base (param i32) (result i32)))
  (import "samite" "len" (func $len (param i32) (result i64)))
  (import "samite" "reply" (func $reply (param i32 i32)))
  (func (export "below") (param $at i32) (param $size i32) (result i32)
    (local $from i32) (local $end i32) (local $base i32)
    (local $bound v128) (local $word v128) (local $hits v128) (local $sum v128) (local $more v128)
    (local $count v128)
    (if (i32.ne (local.get $size) (i32.const 24)) (then (return (i32.const 1))))
    (local.set $base (call $base (i32.load (local.get $at))))
    (if (i32.eqz (local.get $base)) (then (return (i32.const 2))))
    (if (i64.gt_u
          (i64.add (i64.load offset=8 (local.get $at)) (i64.load offset=16 (local.get $at)))
          (call $len (i32.load (local.get $at))))
      (then (return (i32.const 3))))
    (local.set $bound (i32x4.splat (i32.load offset=4 (local.get $at))))
    (local.set $from
      (i32.add (local.get $base) (i32.wrap_i64 (i64.load offset=8 (local.get $at)))))
    (local.set $end
      (i32.add (local.get $from) (i32.wrap_i64 (i64.load offset=16 (local.get $at)))))
    (block $done (loop $next
      (br_if $done (i32.ge_u (local.get $from) (local.get $end)))
      (local.set $word (v128.load offset=0 (local.get $from)))
      (local.set $hits (i32x4.lt_u (local.get $word) (local.get $bound)))
      (local.set $count (i32x4.sub (local.get $count) (local.get $hits)))
      (local.set $word (v128.and (local.get $word) (local.get $hits)))
      (local.set $sum
        (i64x2.add (local.get $sum) (i64x2.extend_low_i32x4_u (local.get $word))))
      (local.set $more
        (i64x2.add (local.get $more) (i64x2.extend_high_i32x4_u (local.get $word))))
      (local.set $word (v128.load offset=16 (local.get $from)))
      (local.set $hits (i32x4.lt_u (local.get $word) (local.get $bound)))
      (local.set $count (i32x4.sub (local.get $count) (local.get $hits)))
      (local.set $word (v128.and (local.get $word) (local.get $hits)))
      (local.set $sum
        (i64x2.add (local.get $sum) (i64x2.extend_low_i32x4_u (local.get $word))))
      (local.set $more
        (i64x2.add (local.get $more) (i64x2.extend_high_i32x4_u (local.get $word))))
      (local.set $word (v128.load offset=32 (local.get $from)))
      (local.set $hits (i32x4.lt_u (local.get $word) (local.get $bound)))
      (local.set $count (i32x4.sub (local.get $count) (local.get $hits)))
      (local.set $word (v128.and (local.get $word) (local.get $hits)))
      (local.set $sum
        (i64x2.add (local.get $sum) (i64x2.extend_low_i32x4_u (local.get $word))))
      (local.set $more
        (i64x2.add (local.get $more) (i64x2.extend_high_i32x4_u (local.get $word))))
      (local.set $word (v128.load offset=48 (local.get $from)))
      (local.set $hits (i32x4.lt_u (local.get $word) (local.get $bound)))
      (local.set $count (i32x4.sub (local.get $count) (local.get $hits)))
      (local.set $word (v128.and (local.get $word) (local.get $hits)))
      (local.set $sum
        (i64x2.add (local.get $sum) (i64x2.extend_low_i32x4_u (local.get $word))))
      (local.set $more
        (i64x2.add (local.get $more) (i64x2.extend_high_i32x4_u (local.get $word))))
      (local.set $from (i32.add (local.get $from) (i32.const 64)))
      (br $next)))
    (local.set $sum (i64x2.add (local.get $sum) (local.get $more)))
    (i64.store (local.get $at) (i64.add
      (i64x2.extract_lane 0 (local.get $sum)) (i64x2.extract_lane 1 (local.get $sum))))
    (local.set $count (i64x2.add
      (i64x2.extend_low_i32x4_u (local.get $count)) (i64x2.extend_high_i32x4_u (local.get $count))))
    (i64.store offset=8 (local.get $at) (i64.add
      (i64x2.extract_lane 0 (local.get $count)) (i64x2.extract_lane 1 (local.get $count))))
    (call $reply (local.get $at) (i32.const 16))
    (i32.const 0)))
