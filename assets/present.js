export default function({ setTriggerValue }) {
  const known = { ArrowRight: 'next', PageDown: 'next', ' ': 'next', ArrowLeft: 'back', PageUp: 'back',
    Escape: 'leave', b: 'flip', B: 'flip', '.': 'flip' }
  const press = event => {
    const what = event.ctrlKey || event.metaKey || event.altKey ? undefined : known[event.key]
    if (!what) return
    event.preventDefault()
    event.stopPropagation()
    setTriggerValue('key', what)
  }
  // Plotly measures its labels where they stand on the screen: it draws unscaled and is enlarged afterwards.
  const charts = () => [...document.querySelectorAll('.stPlotlyChart')]
    .filter(chart => !chart.closest('.st-key-studio-sheet'))
  let fitted = false, changed = performance.now()
  const boxes = new Set() // what was given more room; the page may put something else into it
  const plain = () => {
    fitted = false
    for (const chart of charts())
      Object.assign(chart.style, { transform: '', opacity: 0 })
    window.dispatchEvent(new Event('resize'))
  }
  const stands = element => element.offsetParent && getComputedStyle(element).position !== 'absolute' &&
    !element.querySelector('.stPlotlyChart')
  // One picture shares the screen with what is said of it; of several, each has the screen for itself.
  const beside = () => charts().length > 1 ? 0 : [...document.querySelectorAll('.stMain .stElementContainer')]
    .filter(stands).reduce((sum, element) => sum + element.offsetHeight + 8, 0)
  const fit = () => {
    if (!fitted && performance.now() - changed < 250) return
    for (const box of boxes) if (!box.querySelector('.stPlotlyChart')) {
      box.style.marginBottom = ''
      boxes.delete(box)
    }
    const texts = beside()
    for (const chart of charts()) {
      const width = chart.offsetWidth, height = chart.offsetHeight
      if (!height || !chart.querySelector('.main-svg')) continue
      const room = window.innerHeight - 24, left = texts < room / 2 ? room - texts : room
      const scale = Math.min((window.innerWidth - 32) / width, left / height)
      const aside = Math.max(0, (window.innerWidth - 32 - width * scale) / 2)
      const style = { transformOrigin: '0 0', transform: `translateX(${aside}px) scale(${scale})`, opacity: 1 }
      if (!fitted || chart.style.transform !== style.transform) Object.assign(chart.style, style)
      const box = chart.closest('.stElementContainer'), more = `${height * (scale - 1)}px`
      if (box.style.marginBottom !== more) box.style.marginBottom = more
      boxes.add(box)
      fitted = true
    }
  }
  const observer = new MutationObserver(records => {
    if (!records.some(r => r.target.closest && r.target.closest('.stPlotlyChart'))) return
    changed = performance.now()
    if (fitted) plain()
  })
  observer.observe(document.querySelector('.stMain'), { childList: true, subtree: true })
  plain()
  window.addEventListener('keydown', press, true)
  const timer = setInterval(fit, 100)
  return () => {
    clearInterval(timer)
    observer.disconnect()
    window.removeEventListener('keydown', press, true)
    for (const box of boxes) box.style.marginBottom = ''
    for (const chart of document.querySelectorAll('.stPlotlyChart'))
      for (const name of ['transform', 'transformOrigin', 'opacity']) chart.style[name] = ''
  }
}
