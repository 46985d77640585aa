;; Sums and counts the 32-bit words of a segment that are below a bound. Stands behind `shards.wat`.
;;
;; payload   16 bound (4 bytes), 4 unused   24 first word of 8 bytes   32 number of such words
;; reply     0 sum   8 count
;;
;; Lanes hold sums of 64 bits: a word is widened before it is added.
(global $sum (mut i64) (i64.const 0))
(global $hits (mut i64) (i64.const 0))

;; Adds what is in these bytes of the kernel's memory.
(func $scan (param $from i32) (param $len i32) (param $limit i32)
  (local $end i32)
  (local $bound v128) (local $word v128) (local $hits v128) (local $sum v128) (local $more v128)
  (local $count v128)
  (local.set $bound (i32x4.splat (local.get $limit)))
  ;; 64 bytes at a time
  (local.set $end (i32.add (local.get $from) (i32.and (local.get $len) (i32.const -64))))
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
  (global.set $sum (i64.add (global.get $sum) (i64.add
    (i64x2.extract_lane 0 (local.get $sum)) (i64x2.extract_lane 1 (local.get $sum)))))
  (local.set $count (i64x2.add
    (i64x2.extend_low_i32x4_u (local.get $count)) (i64x2.extend_high_i32x4_u (local.get $count))))
  (global.set $hits (i64.add (global.get $hits) (i64.add
    (i64x2.extract_lane 0 (local.get $count)) (i64x2.extract_lane 1 (local.get $count)))))
  ;; what is left: 4 bytes at a time
  (local.set $end (i32.add (local.get $from) (i32.and (local.get $len) (i32.const 60))))
  (block $done (loop $next
    (br_if $done (i32.ge_u (local.get $from) (local.get $end)))
    (if (i32.lt_u (i32.load (local.get $from)) (local.get $limit)) (then
      (global.set $sum
        (i64.add (global.get $sum) (i64.load32_u (local.get $from))))
      (global.set $hits (i64.add (global.get $hits) (i64.const 1)))))
    (local.set $from (i32.add (local.get $from) (i32.const 4)))
    (br $next))))

(func (export "below") (param $at i32) (param $size i32) (result i32)
  (local $from i64) (local $words i64) (local $now i64) (local $bound i32)
  (call $open (local.get $at) (local.get $size) (i32.const 40))
  (global.set $sum (i64.const 0))
  (global.set $hits (i64.const 0))
  (local.set $bound (i32.load offset=16 (local.get $at)))
  (local.set $from (i64.load offset=24 (local.get $at)))
  (local.set $words (i64.load offset=32 (local.get $at)))
  (if (i32.or
        (i64.gt_u (local.get $from) (global.get $total))
        (i64.gt_u (local.get $words) (i64.sub (global.get $total) (local.get $from))))
    (then (call $outside)))
  (if (global.get $base)
    (then (call $scan
      (i32.add (global.get $base) (i32.shl (i32.wrap_i64 (local.get $from)) (i32.const 3)))
      (i32.shl (i32.wrap_i64 (local.get $words)) (i32.const 3))
      (local.get $bound)))
    ;; A segment that is not mapped is copied to the buffer, piece by piece.
    (else (block $done (loop $next
      (br_if $done (i64.eqz (local.get $words)))
      (local.set $now (select (local.get $words) (i64.const 8192)
        (i64.lt_u (local.get $words) (i64.const 8192))))
      (call $copy_in (global.get $grant) (i64.shl (local.get $from) (i64.const 3))
        (i32.const 65536) (i32.shl (i32.wrap_i64 (local.get $now)) (i32.const 3)))
      (call $scan (i32.const 65536) (i32.shl (i32.wrap_i64 (local.get $now)) (i32.const 3))
        (local.get $bound))
      (local.set $from (i64.add (local.get $from) (local.get $now)))
      (local.set $words (i64.sub (local.get $words) (local.get $now)))
      (br $next)))))
  (i64.store (local.get $at) (global.get $sum))
  (i64.store offset=8 (local.get $at) (global.get $hits))
  (call $reply (local.get $at) (i32.const 16))
  (i32.const 0))
